"""Other ways to run than `run`: with OrtValues, on bound memory, on another thread."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sardonyx.errors import InvalidArgument
from sardonyx.ort.device import torch_name
from sardonyx.session.introspection import About

if TYPE_CHECKING:
    from sardonyx.ort.options import RunOptions
    from sardonyx.ort.ort_value import OrtValue
    from sardonyx.ort.ort_value_vector import OrtValueVector
    from sardonyx.session.io_binding import IOBinding, SessionIOBinding


class Ways(About):
    """The part of a session that runs it by way of others."""

    @abstractmethod
    def run(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        run_options: RunOptions | None = None,
    ) -> list[Any]:
        """The outputs for these inputs, as arrays."""

    @abstractmethod
    def _run_in_place(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        run_options: RunOptions | None,
    ) -> list[Any]:
        """The outputs where they are made: arrays, or tensors on devices."""

    @abstractmethod
    def _check_required(self, input_feed: Mapping[str, Any]) -> None:
        """Refuses a feed without all inputs."""

    def run_async(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        callback: Callable[[list[Any], Any, str], None],
        user_data: Any,
        run_options: RunOptions | None = None,
    ) -> None:
        """`run` on another thread, which then calls callback(results, user_data, error text)."""
        from sardonyx.session.async_run import start  # brings threads, which few programs ask for

        feed = dict(input_feed)
        self._check_required(feed)
        start(lambda: self.run(output_names, feed, run_options), callback, user_data)

    def run_with_ort_values(
        self,
        output_names: Sequence[str] | None,
        input_dict_ort_values: Mapping[str, OrtValue],
        run_options: RunOptions | None = None,
    ) -> list[OrtValue]:
        """`run` with OrtValues for inputs and outputs; tensors stay where they are made."""
        from sardonyx.ort.ort_value import OrtValue, as_ort_value

        for name, value in input_dict_ort_values.items():
            if not isinstance(value, OrtValue):
                raise TypeError(f"the input {name} is an OrtValue, not {type(value).__name__}")
        feed = {name: value._fed() for name, value in input_dict_ort_values.items()}
        results = self._run_in_place(output_names, feed, run_options)
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
        """`run_with_ort_values` on lists: results go to the end of `fetches`, on these devices."""
        if len(feed_names) != len(feeds):
            raise InvalidArgument(f"{len(feed_names)} names are given for {len(feeds)} inputs")
        made = self.run_with_ort_values(
            fetch_names, dict(zip(feed_names, feeds, strict=True)), run_options
        )
        if fetch_devices and len(fetch_devices) != len(made):
            raise InvalidArgument(f"{len(fetch_devices)} devices are given for {len(made)} outputs")
        for number, value in enumerate(made):
            device = torch_name(fetch_devices[number]) if fetch_devices else value._device()
            fetches.push_back(value._at(device))

    def run_with_iobinding(
        self, iobinding: IOBinding | SessionIOBinding, run_options: RunOptions | None = None
    ) -> None:
        """A run on bound memory; its results are where outputs were bound to."""
        bound: SessionIOBinding = iobinding._iobinding
        if bound._session is not self:
            raise InvalidArgument("the binding belongs to another session")
        bound.run(run_options)

    def create_ortvalue_from_shape_and_type(
        self,
        shape: Sequence[int],
        element_type: Any,
        device_type: str,
        device_id: int = 0,
        vendor_id: int = -1,
    ) -> OrtValue:
        """A tensor of zeros on a device of the session's."""
        from sardonyx.ort.ort_value import OrtValue

        return OrtValue.ortvalue_from_shape_and_type(
            shape, element_type, device_type, device_id, vendor_id
        )
