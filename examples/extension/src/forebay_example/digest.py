"""The application `digest`: every so many texts of a key, one sentence that sums them up."""

from dataclasses import dataclass

from pydantic import Field

import forebay as fb
from forebay import extend

Texts = list[str]


@dataclass(frozen=True)
class DigestProgram(fb.Program[Texts]):
    """Keeps a key's texts until there are `every`, then asks for a digest and forgets them."""

    text: str
    every: int

    def initial(self, key: str) -> Texts:
        return []

    def on_event(self, state: Texts, event: fb.Event, now: fb.Moment) -> fb.Step[Texts]:
        texts = [*state, str(event.fields[self.text])]
        if len(texts) < self.every:
            return fb.Step(texts)
        question = "Sum up in one sentence:\n" + "\n".join(texts)
        return fb.Step(texts, fb.Ask((fb.Message("user", question),)))

    def on_answer(self, state: Texts, tag: str, answer: fb.Answer, now: fb.Moment) -> fb.Step[Texts]:
        return fb.Step([], outputs=(fb.Output({"texts": len(state), "digest": answer.value}),))


class Digest(extend.Application):
    """A digest of every so many texts under each key."""

    preset = extend.Preset({"key": "{{ user }}"})

    text: extend.FieldPath = Field("text", description="Field with the text.")
    every: int = Field(10, ge=1, le=100, description="How many texts make a digest.")

    def program(self, *, event_time: bool) -> DigestProgram:
        return DigestProgram(self.text, self.every)
