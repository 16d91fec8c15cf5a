"""Token-exact trajectories: what was sampled is what is trained.

Invariants:
* the ids of a row are, at each of its turns, exactly those sent to the sampler followed by exactly
  those it returned; nothing is tokenised twice;
* `loss_mask` is 1 on sampled tokens and 0 on all others, and every sampled token of the episode is
  in exactly one row;
* a row ends on the tokenizer's EOS token (added with mask 0 where none was sampled), since TRL
  takes any other last token for a truncated completion.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from miner.environments.base import EpisodeTask, Message, Tool, Transition
from miner.inference.sampler import FinishReason, Sample, SamplerError
from miner.rollout.renderer import ChatRenderer, Continuation, DriftKind

ENVIRONMENT_TURN = -1
"""`turn_ids` entry of tokens that no turn has sampled."""


@dataclass(frozen=True, slots=True)
class RolloutRow:
    """One training row. All tuples but `prompt_ids` have one entry per completion token.

    Attributes:
        prompt_ids: the initial prompt, after a fork the re-rendered one, or a fresh chat's.
        completion_ids: replies and, between them, the text of the environment and the template.
        logprobs: natural-log probability of each sampled token; 0.0 for the others.
        loss_mask: 1 for sampled tokens, 0 for the others.
        turn_ids: index of the turn that sampled the token; -1 for the others.
        weight: share of this row in the step's cross-entropy towards targets (over all legal moves,
            or a teacher's or a record's reply), for a row whose completion was not sampled (all its
            logprobs are NaN); None where the episode's credit decides.
        entropy: this row's part of that of what is taught after its prompt, in nats; None for
            mounted data beside targets, which are no part of the distance from these.
    """

    prompt_ids: tuple[int, ...]
    completion_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    loss_mask: tuple[int, ...]
    turn_ids: tuple[int, ...]
    weight: float | None = None
    entropy: float | None = 0.0


@dataclass(frozen=True, slots=True)
class TurnRecord:
    """One reply and what came of it.

    Attributes:
        messages: messages shown to the policy since its last reply.
        reply: text that was given to the environment.
        action: id of the action played, None if the reply could not be parsed.
        valid: true if the reply was parsed into a legal action.
        sampled_tokens: length of the reply in tokens, the end-of-turn token included; 0 for a reply
            that was picked for the policy.
        finish_reason: see `Sample`; "length" when the reply was cut off.
        drift: relation of this turn's prompt to the tokens held before it.
        reward: see `Transition`.
    """

    messages: tuple[Message, ...]
    reply: str
    action: int | None
    valid: bool
    sampled_tokens: int
    finish_reason: FinishReason
    drift: DriftKind
    prompt_tokens: int = 0
    cached_tokens: int = 0
    reward: float = 0.0


@dataclass(frozen=True, slots=True)
class Trajectory:
    """A finished episode.

    Attributes:
        task: the played task.
        rows: training rows in the order of play; more than one where a prompt did not continue the
            tokens held before it (a fork, or a fresh chat).
        turns: every reply in order.
        score: the graded score in [0, 1].
    """

    task: EpisodeTask
    rows: tuple[RolloutRow, ...]
    turns: tuple[TurnRecord, ...]
    score: float

    @property
    def sampled_tokens(self) -> int:
        """Tokens that carry loss."""
        return sum(turn.sampled_tokens for turn in self.turns)

    @property
    def total_tokens(self) -> int:
        """Tokens that a trainer processes: prompts and completions of all rows."""
        return sum(len(row.prompt_ids) + len(row.completion_ids) for row in self.rows)


@dataclass(slots=True)
class _OpenRow:
    prompt_ids: tuple[int, ...]
    completion_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    turn_ids: list[int] = field(default_factory=list)
    loss_mask: list[int] = field(default_factory=list)

    def extend(self, ids: Sequence[int], logprobs: Sequence[float], turn: int, loss: bool) -> None:
        self.completion_ids.extend(ids)
        self.logprobs.extend(logprobs)
        self.turn_ids.extend([turn] * len(ids))
        self.loss_mask.extend([int(loss)] * len(ids))

    def extend_unsampled(self, ids: Sequence[int]) -> None:
        self.extend(ids, [0.0] * len(ids), ENVIRONMENT_TURN, loss=False)

    def end_with_reply(self) -> None:
        """Drop what came after the last reply."""
        end = 1 + max(i for i, turn in enumerate(self.turn_ids) if turn != ENVIRONMENT_TURN)
        for values in (self.completion_ids, self.logprobs, self.turn_ids, self.loss_mask):
            del values[end:]

    def close(self, eos_token_id: int) -> RolloutRow:
        if self.completion_ids[-1] != eos_token_id:
            self.extend_unsampled([eos_token_id])
        return RolloutRow(
            prompt_ids=self.prompt_ids,
            completion_ids=tuple(self.completion_ids),
            logprobs=tuple(self.logprobs),
            loss_mask=tuple(self.loss_mask),
            turn_ids=tuple(self.turn_ids),
        )


class TrajectoryBuilder:
    """Grows one trajectory: `prompt_ids`, then `add_reply`, then `add_transition`, and again.

    Attributes:
        shown: messages since the last reply, which the next one answers.
    """

    def __init__(
        self,
        renderer: ChatRenderer,
        task: EpisodeTask,
        messages: Sequence[Message],
        tools: Sequence[Tool] = (),
    ) -> None:
        self._renderer = renderer
        self._task = task
        self._rows: list[_OpenRow] = []
        self._turns: list[TurnRecord] = []
        self._begin(messages, tools)
        self._sample: Sample | None = None
        self._reply = ""

    @property
    def prompt_ids(self) -> list[int]:
        """Ids to send to the sampler now."""
        return [*self._rows[-1].prompt_ids, *self._rows[-1].completion_ids]

    @property
    def replied(self) -> bool:
        """Return whether there was a reply."""
        return bool(self._turns)

    def add_reply(self, sample: Sample) -> str:
        """Keep `sample` verbatim; returns its text for the environment.

        Raises: SamplerError where the sample is not a reply (no tokens, not one logprob for each).
        """
        if not sample.token_ids or len(sample.token_ids) != len(sample.logprobs):
            raise SamplerError(
                f"a sample of {len(sample.token_ids)} ids and {len(sample.logprobs)} logprobs is "
                "no reply: check the generation engine"
            )
        self._sampled = len(sample.token_ids)
        self._add(sample)
        self._reply = self._renderer.reply_text(sample, special_tokens=bool(self._tools))
        return self._reply

    def add_picked(self, reply: str) -> str:
        """Keep a whole reply that the policy has not sampled, and which has no loss."""
        ids = self._renderer.encode_reply(reply)
        self._sampled, self._reply = 0, reply
        self._add(Sample(ids, (0.0,) * len(ids), "stop"))
        return reply

    def _add(self, sample: Sample) -> None:
        self._prompt_tokens = len(self.prompt_ids) if self._sampled else 0
        self._rows[-1].extend(
            sample.token_ids, sample.logprobs, len(self._turns), self._sampled > 0
        )
        self._sample = sample

    def add_transition(self, transition: Transition) -> None:
        """Record what the reply led to and, unless it was the end, grow the next prompt."""
        sample = self._sample
        if sample is None:
            raise RuntimeError("add_transition needs the reply it answers: call add_reply first")
        self._sample = None
        self._turns.append(
            TurnRecord(
                messages=self.shown,
                reply=self._reply,
                action=transition.action,
                valid=transition.valid,
                sampled_tokens=self._sampled,
                finish_reason=sample.finish_reason,
                drift=self._drift,
                prompt_tokens=self._prompt_tokens,
                cached_tokens=sample.cached_tokens or 0,
                reward=transition.reward,
            )
        )
        if transition.done:
            return
        if transition.appended:
            self._go_on_replying(sample, transition.appended)
        elif transition.fresh:
            self._begin(transition.messages, transition.tools)
        else:
            self._continue(sample, transition)

    def build(self, score: float) -> Trajectory:
        """The finished trajectory with its graded `score`."""
        eos = self._renderer.eos_token_id
        return Trajectory(
            task=self._task,
            rows=tuple(row.close(eos) for row in self._rows if row.completion_ids),
            turns=tuple(self._turns),
            score=score,
        )

    def build_forfeited(self) -> Trajectory:
        """The trajectory with score 0, ended by its last reply as by an invalid one."""
        self._turns[-1] = replace(self._turns[-1], valid=False)
        next(row for row in self._rows[::-1] if row.completion_ids).end_with_reply()
        return self.build(0.0)

    def _begin(self, messages: Sequence[Message], tools: Sequence[Tool]) -> None:
        """A chat of these messages alone, in a new row."""
        self._conversation = list(messages)
        self._tools = tools
        self.shown = tuple(messages)
        self._said = ""
        self._text = self._renderer.render(self._conversation, tools)
        self._drift = DriftKind.CLEAN
        self._rows.append(_OpenRow(self._renderer.encode(self._text)))

    def _go_on_replying(self, sample: Sample, appended: str) -> None:
        """The assistant's message stays open, and the next reply continues it."""
        self._said += self._reply + appended
        self.shown = ({"role": "assistant", "content": appended},)
        self._grow(self._renderer.continue_reply(self._text, sample, appended))

    def _continue(self, sample: Sample, transition: Transition) -> None:
        said = self._reply if transition.recorded is None else transition.recorded
        self._conversation.append({"role": "assistant", "content": self._said + said})
        self._conversation.extend(transition.messages)
        self._said = ""
        self.shown = transition.messages
        self._grow(
            self._renderer.continue_prompt(self._conversation, self._text, sample, self._tools)
        )

    def _grow(self, step: Continuation) -> None:
        self._text, self._drift = step.text, step.drift
        if step.drift is DriftKind.FORK:
            self._rows.append(_OpenRow(step.new_ids))
        else:
            self._rows[-1].extend_unsampled(step.new_ids)
