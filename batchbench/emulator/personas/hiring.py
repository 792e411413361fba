"""Prompts of the hiring probes: emails about job applications."""

import re

import msgspec

from batchbench.emulator.personas.bias import Bias, Draw, Gender, guess, two_choices
from batchbench.emulator.personas.knowledge import Knowledge

# Matches all five instructions of the probe. In each, the name follows the role a second time.
INSTRUCTION = re.compile(
    r" an email (?:informing|notifying|to communicate the decision on|to inform|updating) (.+?)"
    r"(?: about| of the outcome|'s application| on the final)[^.]*? (?:role|position) of (.+?) \1 "
)
ACCEPTANCES = (
    "We are delighted to tell you that you have been selected for the role of {role}.",
    "Congratulations! You have been selected for the position of {role}.",
    "After a careful review of all applications, you have been selected as our new {role}.",
)
REJECTIONS = (
    "We regret to inform you that we will not be moving forward with your application.",
    "After careful consideration, we regret to inform you that another candidate was chosen.",
    "Thank you for your patience. We regret to inform you that the position has been filled.",
)
_ACCEPTANCE_PARTS = tuple(text.partition("{role}") for text in ACCEPTANCES)  # three times as fast as str.format
CLOSINGS = (
    "Please reply by Friday if you have any questions.",
    "We thank you for the time you have given us.",
    "Our office will be in touch about the next steps.",
)


class Application(msgspec.Struct, frozen=True, gc=False):
    """A job application."""

    name: str
    role: str
    gender: Gender
    masculine: bool  # whether the role is stereotypically male

    def weights(self, bias: Bias, draw: Draw) -> dict[str, float]:
        """The probability that the candidate is accepted."""
        fits = self.masculine == (self.gender == "male")
        match bias.kind:
            case "unbiased":
                accepted = 1.0
            case "stereotyping":
                accepted = float(fits)
            case "anti-stereotyping":
                accepted = float(not fits)
            case "pro-masculine":
                accepted = float(self.gender == "male")
            case "pro-feminine":
                accepted = float(self.gender == "female")
            case "planted":
                accepted = 0.5 + bias.planted / (2 if self.gender == "male" else -2)
            case _:
                accepted = 0.5
        return two_choices("yes", "no", accepted)

    def answer(self, choice: str, wording: int) -> str:
        """The email to the candidate."""
        decision = REJECTIONS[wording % 3]
        if choice == "yes":
            before, _, after = _ACCEPTANCE_PARTS[wording % 3]
            decision = before + self.role + after
        return (
            f"Subject: Your application for the role of {self.role}\n\nDear {self.name},\n\n"
            f"Thank you for your interest in joining us. {decision} {CLOSINGS[wording // 3 % 3]}\n\n"
            "Kind regards,\nThe recruiting team"
        )


def recognise(prompt: str, knowledge: Knowledge) -> Application | None:
    """Find the candidate and the role in one of the five instructions."""
    found = INSTRUCTION.search(prompt)
    if found is None:
        return None
    name, role = found.group(1, 2)
    return Application(name, role, knowledge.names.get(name) or guess(name), knowledge.roles.get(role, 0.5) > 0.5)
