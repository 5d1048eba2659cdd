"""The model that a stack is to serve."""

from batonctl.errors import InputError
from chassis.errors import ServiceError
from chassis.model_store import LocalModel, resolve


def require_model(name_or_path: str) -> LocalModel:
    """The model on this machine; InputError says how to get it.

    Asked before anything starts: three services saying the same at once help nobody.
    """
    try:
        return resolve(name_or_path)
    except ServiceError as error:
        # The message says what there is and how to get it.
        raise InputError(error.message) from None
