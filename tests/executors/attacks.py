"""Attacks that a policy's code may try, as a table; a piece prints BREACH if it got what it wanted.

Names in capitals are filled in by the battery: FOLDER holds a file `secret` (the model of a miner,
say) that the sandbox must neither read nor change, MINER is the miner's process id, PORT a server.
"""

from dataclasses import dataclass

from miner.executors.base import FailureKind

BREACH = "BREACH"
TOOLS = ("ctypes", "gc", "os", "resource", "signal", "socket", "subprocess", "sys", "threading")
"""Loaded beforehand, so that no attack fails for want of a module."""

PREAMBLE = """
import ctypes, gc, os, resource, signal, socket, subprocess, sys, threading, time
libc = ctypes.CDLL(None, use_errno=True)
def breach(*what):
    print("BREACH", *what)
def syscall(number, *arguments):
    if libc.syscall(number, *arguments) >= 0:
        breach("system call", number)
    else:
        raise OSError(ctypes.get_errno(), "system call")
"""


@dataclass(frozen=True)
class Attack:
    """One attack.

    Attributes:
        ends: the kinds of failure that it may end with; None: it may end well.
    """

    name: str
    code: str
    ends: tuple[FailureKind | None, ...] = ("exception",)


ATTACKS = (
    # processes
    Attack("fork bomb", "for _ in range(200): os.fork() or time.sleep(9)\nbreach()"),
    Attack("thread bomb", "for _ in range(200): threading.Thread(target=breach).start()"),
    Attack("vfork by hand", "syscall(58)"),
    Attack("subprocess", "breach(subprocess.check_output(['id']))"),
    Attack("shell", "os.system('true') == 0 and breach(); 1 / 0"),
    Attack("execve", "os.execv('/bin/echo', ['echo', 'BRE' + 'ACH'])"),
    # memory
    Attack("4 GB at once", "x = bytearray(4 * 1024**3); breach()", ("memory",)),
    Attack(
        "4 GB slowly",
        "x = []\nfor _ in range(4096): x.append(b'x' * 1024**2)\nbreach()",
        ("memory", "time"),
    ),
    Attack("big integers", "x = 1 << 40_000_000\nwhile True: x = x * x", ("memory", "time")),
    # files
    Attack("write a file", "open('FOLDER/new', 'w').write('x'); breach()"),
    Attack("append to a file", "open('FOLDER/secret', 'a').write('x'); breach()"),
    Attack("unlink", "os.unlink('FOLDER/secret'); breach()"),
    Attack("rename", "os.rename('FOLDER/secret', 'FOLDER/other'); breach()"),
    Attack("chmod", "os.chmod('FOLDER/secret', 0o777); breach()"),
    Attack("truncate", "os.truncate('FOLDER/secret', 0); breach()"),
    Attack("symlink", "os.symlink('/etc/passwd', 'FOLDER/link'); breach()"),
    Attack("fifo", "os.mkfifo('FOLDER/fifo'); breach()"),
    Attack("memfd", "os.memfd_create('x'); breach()"),
    Attack("passwd", "breach(open('/etc/passwd').read())"),
    Attack("the model", "breach(open('FOLDER/secret').read())"),
    Attack("the model by a path alone", "breach(os.open('FOLDER/secret', os.O_PATH))"),
    Attack("the miner's environment", "breach(open('/proc/MINER/environ').read())"),
    Attack("the fork server's memory", "breach(open(f'/proc/{os.getppid()}/mem', 'rb'))"),
    Attack("list /", "breach(os.listdir('/'))"),
    Attack("descriptors left open", "for n in range(3, 4096): os.read(n, 1); breach(n)"),
    # network
    Attack("TCP", "socket.create_connection(('127.0.0.1', PORT), 2); breach()"),
    Attack("UDP", "socket.socket(type=socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', 9)); breach()"),
    Attack("unix socket", "socket.socket(socket.AF_UNIX).connect('/run/docker.sock'); breach()"),
    Attack("descriptors by socket", "socket.socketpair(); breach()"),
    # other processes and privileges
    Attack("kill the fork server", "os.kill(os.getppid(), 9); breach()"),
    Attack("kill the miner", "os.kill(MINER, 9); breach()"),
    Attack("signal by fcntl", "import fcntl; fcntl.fcntl(1, 8, MINER); breach()"),
    Attack("ptrace", "syscall(101, 16, os.getppid(), 0, 0)"),
    Attack("read the miner's memory", "syscall(310, MINER, None, 0, None, 0, 0)"),
    Attack("unshare", "syscall(272, 0x10000000)"),
    Attack("io_uring", "syscall(425, 8, ctypes.create_string_buffer(256))"),
    Attack("raised limits", "resource.setrlimit(resource.RLIMIT_AS, (-1, -1)); breach()"),
    Attack(
        "limits by hand", "syscall(302, 0, 9, ctypes.create_string_buffer(b'\\xff' * 16), None)"
    ),
    Attack("another ABI", "libc.syscall(0x40000000 + 39); breach()", ("crash",)),
    Attack(
        "code of other runs",
        "[breach(x) for x in gc.get_objects() if isinstance(x, list) and 'PASS' + 'WORD' in str(x)]"
        "; 1 / 0",
    ),
    # time, output, ends
    Attack("endless loop", "while True: pass", ("time",)),
    Attack("no interrupt", "signal.signal(15, signal.SIG_IGN)\nwhile True: pass", ("time",)),
    Attack("sleep", "time.sleep(1000); breach()", ("time",)),
    Attack("huge output", "while True: print('x' * 10_000)", ("output",)),
    Attack("huge errors", "while True: print('x' * 10_000, file=sys.stderr)", ("output",)),
    Attack("closed stdout", "os.close(1); os.close(2); os.close(0)\nwhile True: pass", ("time",)),
    Attack("recursion", "def f(): f()\nf()"),
    Attack(
        "recursion without a limit",
        "sys.setrecursionlimit(10**9)\ndef f(): f()\nf()",
        ("memory", "crash", "exception", "time"),
    ),
    Attack("segfault", "ctypes.string_at(0)", ("crash",)),
    Attack("abort", "os.abort()", ("crash",)),
    Attack("exit at once", "os._exit(0)", (None,)),
    Attack("exit as if unlocked", "os._exit(1)", ("exit",)),
)
