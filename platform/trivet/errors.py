"""Everything Trivet raises on purpose, and what each means over HTTP.

    TrivetError                       500 server_error
    ├── ConfigError                   400 invalid_configuration   settings file, environment, command line
    ├── PluginError                   500 plugin_error            a plugin that cannot be registered
    ├── RequestError                  400 invalid_request         the caller's request is at fault
    │   ├── ContextLengthExceeded     400 context_length_exceeded
    │   ├── UnsupportedParameter      400 unsupported_parameter
    │   ├── RequestTooLarge           413 request_too_large
    │   ├── AuthenticationError       401 invalid_api_key
    │   ├── PermissionDenied          403 permission_denied
    │   ├── NotFound                  404 not_found
    │   │   └── ModelNotFound         404 model_not_found
    │   ├── Conflict                  409 conflict                not in this state
    │   └── Overloaded                429 overloaded              retry later
    │       └── RateLimited           429 rate_limit_exceeded     what a key may have is had
    ├── Unavailable                   503 unavailable             nothing can serve this now
    │   ├── EngineLost                503 engine_lost             the engine ended under a request
    │   ├── InstanceStopped           503 instance_stopped        it was told to stop, or its drain was over
    │   └── DeadlinePassed            503 deadline_passed         the request's own, while it waited
    ├── GenerationError               500 generation_failed       one sequence failed (NaN, out of memory)
    ├── ModelFilesError               400 invalid_model_files     config, tokenizer or template
    │   ├── UnsupportedArchitecture   400 unsupported_architecture
    │   └── WeightsError              400 invalid_weights         names the file and the tensor
    └── BackendError                  500 backend_error           raised by backends and runners
        ├── Unsupported               400 unsupported             this device cannot run this
        ├── DoesNotFit                400 does_not_fit            names the smallest change that fits
        ├── OutOfMemory               500 out_of_memory           of one step
        └── DeviceLost                503 device_lost             final

Every message says what was wrong, the value, and what would do.
"""

from __future__ import annotations


class TrivetError(Exception):
    """Root of the tree. `status` and `code` are the one place where errors meet HTTP."""

    status: int = 500
    code: str = "server_error"

    @property
    def message(self) -> str:
        return str(self)


class ConfigError(TrivetError):
    """A setting that is unknown, ill-typed or contradicts another."""

    status, code = 400, "invalid_configuration"


class PluginError(TrivetError):
    """A plugin that fails to import or to register; names plugin, hook and place."""

    code = "plugin_error"


class RequestError(TrivetError):
    """The caller's request is at fault; `param` names the field, as OpenAI's error object does."""

    status, code = 400, "invalid_request"

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class ContextLengthExceeded(RequestError):
    """Prompt and completion do not fit the context; both numbers are in the message."""

    code = "context_length_exceeded"


class UnsupportedParameter(RequestError):
    """A field that peers know and this version does not carry out."""

    code = "unsupported_parameter"


class RequestTooLarge(RequestError):
    """The body is over the size limit."""

    status, code = 413, "request_too_large"


class AuthenticationError(RequestError):
    """No key, or a wrong one."""

    status, code = 401, "invalid_api_key"


class PermissionDenied(RequestError):
    """The key is right and may not do this."""

    status, code = 403, "permission_denied"


class NotFound(RequestError):
    """The thing that was named does not exist."""

    status, code = 404, "not_found"


class ModelNotFound(NotFound):
    """No such model; the message lists what exists."""

    code = "model_not_found"


class Conflict(RequestError):
    """The request is well-formed and the present state does not allow it."""

    status, code = 409, "conflict"


class Overloaded(RequestError):
    """The queue is full; `retry_after_s` becomes the Retry-After header."""

    status, code = 429, "overloaded"

    def __init__(self, message: str, *, retry_after_s: int = 1) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class RateLimited(Overloaded):
    """A key has had what it may have, whether or not the server is busy; OpenAI's name."""

    code = "rate_limit_exceeded"


class Unavailable(TrivetError):
    """Nothing can serve the request now; the reason of the nearest candidate is in the message.

    `retry_after_s` becomes the Retry-After header, where something is on its way.
    """

    status, code = 503, "unavailable"

    def __init__(self, message: str, *, retry_after_s: int | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class EngineLost(Unavailable):
    """The engine process ended, or fell silent, while it held the request."""

    code = "engine_lost"


class InstanceStopped(Unavailable):
    """The engine was told to stop, or reached its drain deadline, while it held the request."""

    code = "instance_stopped"


class DeadlinePassed(Unavailable):
    """The request's deadline passed before it was its turn; `retry_after_s` becomes Retry-After."""

    code = "deadline_passed"

    def __init__(self, message: str, *, retry_after_s: int = 1) -> None:
        super().__init__(message, retry_after_s=retry_after_s)


class GenerationError(TrivetError):
    """One sequence failed in the engine; its batch mates went on."""

    code = "generation_failed"


class ModelFilesError(TrivetError):
    """A model folder or file that cannot be used; names the file and what to do."""

    status, code = 400, "invalid_model_files"


class UnsupportedArchitecture(ModelFilesError):
    """Neither our specs nor transformers know this architecture."""

    code = "unsupported_architecture"


class WeightsError(ModelFilesError):
    """A weight file that is missing, truncated or does not match the config."""

    code = "invalid_weights"


class BackendError(TrivetError):
    """Root of what backends and runners raise."""

    code = "backend_error"


class Unsupported(BackendError):
    """This device cannot run this model, weight format or setting."""

    status, code = 400, "unsupported"


class DoesNotFit(BackendError):
    """The plan needs more memory than there is; names the smallest change that fits."""

    status, code = 400, "does_not_fit"


class OutOfMemory(BackendError):
    """One step ran out of memory (contract rule 9); the core re-queues and fails the youngest."""

    code = "out_of_memory"


class DeviceLost(BackendError):
    """The device, a rank or its driver is gone. Final: the process ends."""

    status, code = 503, "device_lost"
