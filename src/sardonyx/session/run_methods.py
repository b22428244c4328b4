"""Methods of InferenceSession that call `run`: with OrtValues, IOBinding, or asynchronously."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sardonyx.errors import InvalidArgument
from sardonyx.ort.device import torch_name
from sardonyx.session.introspection import IntrospectionMixin

if TYPE_CHECKING:
    from sardonyx.ort.options import RunOptions
    from sardonyx.ort.ort_value import OrtValue
    from sardonyx.ort.ort_value_vector import OrtValueVector
    from sardonyx.session.io_binding import IOBinding, SessionIOBinding

OutputNames = Sequence[str] | None  # None: all outputs
Feed = Mapping[str, Any]


class RunMethodsMixin(IntrospectionMixin):
    """The run methods of a session other than `run`."""

    _required: list[str]  # names of inputs without a default

    @abstractmethod
    def run(
        self, output_names: OutputNames, input_feed: Feed, run_options: RunOptions | None = None
    ) -> list[Any]:
        """Return the outputs for these inputs, as arrays."""

    @abstractmethod
    def _run_on_device(
        self, output_names: OutputNames, input_feed: Feed, run_options: RunOptions | None
    ) -> list[Any]:
        """Return the outputs where they were computed: arrays, or tensors on devices."""

    def _check_required(self, input_feed: Feed) -> None:
        """Raise an error for a feed without all required inputs."""
        if not isinstance(input_feed, Mapping):
            raise TypeError(f"input_feed is a dict by name, not a {type(input_feed).__name__}")
        missing = [n for n in self._required if n not in input_feed]
        if missing:
            raise ValueError(
                f"Required inputs ({missing}) are missing from input feed ({list(input_feed)})."
            )

    def run_async(
        self,
        output_names: OutputNames,
        input_feed: Feed,
        callback: Callable[[list[Any], Any, str], None],
        user_data: Any,
        run_options: RunOptions | None = None,
    ) -> None:
        """Call `run` on another thread, then callback(results, user_data, error text) there."""
        from sardonyx.session.async_run import submit  # imports concurrent.futures, rarely needed

        feed = dict(input_feed)
        self._check_required(feed)
        submit(lambda: self.run(output_names, feed, run_options), callback, user_data)

    def run_with_ort_values(
        self,
        output_names: OutputNames,
        input_dict_ort_values: Mapping[str, OrtValue],
        run_options: RunOptions | None = None,
    ) -> list[OrtValue]:
        """Call `run` with OrtValues; outputs stay on the devices that computed them."""
        from sardonyx.ort.ort_value import OrtValue, as_ort_value

        for name, value in input_dict_ort_values.items():
            if not isinstance(value, OrtValue):
                raise TypeError(f"the input {name} must be an OrtValue, got {type(value).__name__}")
        feed = {name: value._fed() for name, value in input_dict_ort_values.items()}
        results = self._run_on_device(output_names, feed, run_options)
        return [as_ort_value(result) for result in results]

    def run_with_ortvaluevector(
        self,
        run_options: RunOptions | None,
        feed_names: Sequence[str],
        feeds: OrtValueVector,
        fetch_names: Sequence[str],
        fetches: OrtValueVector,
        fetch_devices: Sequence[Any],
    ) -> None:
        """Call `run_with_ort_values`; append the results to `fetches`, on these devices."""
        if len(feed_names) != len(feeds):
            raise InvalidArgument(f"there are {len(feed_names)} names for {len(feeds)} inputs")
        feed = dict(zip(feed_names, feeds, strict=True))
        results = self.run_with_ort_values(fetch_names, feed, run_options)
        if fetch_devices and len(fetch_devices) != len(results):
            raise InvalidArgument(
                f"there are {len(fetch_devices)} devices for {len(results)} outputs"
            )
        for i, value in enumerate(results):
            device = torch_name(fetch_devices[i]) if fetch_devices else value._device()
            fetches.push_back(value._at(device))

    def run_with_iobinding(
        self, iobinding: IOBinding | SessionIOBinding, run_options: RunOptions | None = None
    ) -> None:
        """Run on bound memory; the results are in the buffers that outputs are bound to."""
        binding: SessionIOBinding = iobinding._iobinding
        if binding._session is not self:
            raise InvalidArgument("the binding belongs to another session")
        binding.run(run_options)

    def create_ortvalue_from_shape_and_type(
        self,
        shape: Sequence[int],
        element_type: Any,
        device_type: str,
        device_id: int = 0,
        vendor_id: int = -1,
    ) -> OrtValue:
        """Return a tensor of zeros on a device."""
        from sardonyx.ort.ort_value import OrtValue

        return OrtValue.ortvalue_from_shape_and_type(
            shape, element_type, device_type, device_id, vendor_id
        )
