"""From a conversation to token ids, and from a reply to a command.

Token in, token out: the prompt of a step is the token ids of the step before, plus the ids the policy sampled, plus the
ids of the next observation between the chat template's own turn markers. Nothing is ever decoded and tokenized again,
so what a trainer learns from is exactly what was sampled.
"""

import re
from collections.abc import Sequence
from typing import Any, Literal, cast, get_args

from rapidfuzz import fuzz, process

from collect.errors import InputError
from collect.trajectory import Match

PromptStyle = Literal["act", "react"]
SYSTEM = {
    "act": "You act in a household by text commands. Reply with the next command.",
    "react": (
        "You solve a task in a household by text commands, one a turn. They look like: go to desk 1, open drawer 2, "
        "take mug 1 from desk 1, move mug 1 to shelf 1, clean mug 1 with sinkbasin 1, heat mug 1 with microwave 1, "
        "cool mug 1 with fridge 1, use desklamp 1, examine mug 1, inventory, look. Every turn, reply in exactly this "
        "form:\nThought: what you know and what to do next, in one or two sentences\nAction: one command"
    ),
}
FUZZY_CUTOFF = 85.0  # rapidfuzz ratio, 0 to 100: forgives a typo or a dropped article, not another object


class Prompt:
    """How observations and replies become the token ids of one conversation with a chat model.

    Text of the game is tokenized as plain text: a special token spelled out in it does not become one.
    """

    def __init__(self, tokenizer: Any, style: PromptStyle, show_commands: bool) -> None:
        self.style = style
        self.show_commands = show_commands
        self._tokenizer = tokenizer
        self._before, self._open_reply = self._markers([_SYSTEM_SLOT, _USER_SLOT])
        turn = self._markers([_SYSTEM_SLOT, _USER_SLOT, _REPLY_SLOT, _NEXT_SLOT])
        self._close_reply, self._after = turn[-2], turn[-1]
        self.stop = frozenset({self._close_reply[0], tokenizer.eos_token_id} - {None})

    def opening(self, observation: str, commands: Sequence[str]) -> list[int]:
        """Token ids of the first prompt: the system line and the first observation, up to where the reply begins."""
        return [*self._before, *self._plain(self._shown(observation, commands)), *self._open_reply]

    def turn(self, reply: Sequence[int], observation: str, commands: Sequence[str]) -> list[int]:
        """Token ids to append after the ids in `reply`: its end of turn if it lacks one, then the observation."""
        close = self._close_reply
        if reply and reply[-1] == close[0]:
            close = close[1:]
        return [*close, *self._plain(self._shown(observation, commands)), *self._after]

    def text(self, reply: Sequence[int]) -> str:
        """The reply's text, without its stop token."""
        ids = reply[:-1] if reply and reply[-1] in self.stop else reply
        decoded: str = self._tokenizer.decode(list(ids), skip_special_tokens=True)
        return decoded.strip()

    def command(self, reply: str) -> str:
        """The command that a reply asks for: in style react what follows the last "Action:", else the first line."""
        if self.style == "react" and (named := named_action(reply)) is not None:
            return named
        lines = [line.strip() for line in reply.splitlines() if line.strip()]
        return lines[0] if lines else ""

    def _shown(self, observation: str, commands: Sequence[str]) -> str:
        text = observation.strip()
        return f"{text}\nCommands: {', '.join(commands)}" if self.show_commands else text

    def _plain(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer(text, add_special_tokens=False, split_special_tokens=True)["input_ids"]
        return ids

    def _markers(self, slots: list[str]) -> list[list[int]]:
        """The template's own token ids around each slot but the first, which is the system line itself."""
        roles = ("system", "user", "assistant", "user")
        messages = [{"role": role, "content": slot} for role, slot in zip(roles, slots, strict=False)]
        rendered = self._render(messages)
        rendered = rendered.replace(_SYSTEM_SLOT, SYSTEM[self.style])
        pieces = re.split("|".join(map(re.escape, slots[1:])), rendered)
        return [self._tokenizer(piece, add_special_tokens=False)["input_ids"] for piece in pieces]

    def _render(self, messages: list[dict[str, str]]) -> str:
        def apply(messages: list[dict[str, str]]) -> str:
            text: str = self._tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
            return text

        try:
            return apply(messages)
        except Exception:  # templates without a system role raise an error of their own making
            system, user, *rest = messages
            folded = {"role": "user", "content": f"{system['content']}\n\n{user['content']}"}
            return apply([folded, *rest])


def named_action(reply: str) -> str | None:
    """What follows the last "Action:" that begins a line of the reply; None without one."""
    found = re.findall(r"^\s*(?:\*\*)?action(?:\*\*)?\s*:(.*)$", reply, re.IGNORECASE | re.MULTILINE)
    return str(found[-1]).strip(" \t*`") if found else None


def check_style(name: str) -> PromptStyle:
    """The prompt style called `name`. Raises `InputError` where there is none."""
    for style in get_args(PromptStyle):
        if name == style:
            return cast(PromptStyle, style)
    raise InputError(f"--prompt {name}: unknown; one of {', '.join(get_args(PromptStyle))}")


_SYSTEM_SLOT, _USER_SLOT, _REPLY_SLOT, _NEXT_SLOT = "⟦system⟧", "⟦user⟧", "⟦reply⟧", "⟦next⟧"


def match_command(command: str, admissible: Sequence[str]) -> tuple[str, Match]:
    """The admissible command that `command` means, and how it was found.

    Exactly, then with case and spaces folded, then by rapidfuzz's ratio above a cutoff among the commands with the same
    numbers (drawer 1 is never a misspelt drawer 2). When none is found the command is returned as it is, with "none":
    the game will answer that nothing happens.
    """
    if command in admissible:
        return command, "exact"
    folded = {_fold(candidate): candidate for candidate in admissible}
    wanted = _fold(command)
    if wanted in folded:
        return folded[wanted], "folded"
    numbers = re.findall(r"\d+", wanted)
    candidates = [candidate for candidate in folded if re.findall(r"\d+", candidate) == numbers]
    best = process.extractOne(wanted, candidates, scorer=fuzz.ratio, score_cutoff=FUZZY_CUTOFF)
    if best is not None:
        return folded[best[0]], "fuzzy"
    return command, "none"


def _fold(command: str) -> str:
    return " ".join(command.casefold().split())
