"""Settings that training commands of several tests share."""


def places(tmp_path, base):
    return [
        f"model.path={base}",
        f"output.dir={tmp_path / 'out' / 'task' / 'repo'}",
        f"run_dir={tmp_path / 'run'}",
    ]
