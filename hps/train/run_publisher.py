"""RunPublisher: publishes what a training run has learned, beside the run.

Above it: `hps.train.run`. Below it: hps/publish, a thread. Training waits for a checkpoint,
not for the destination: what is published is read from the store, or written by the servers that
hold the rows. Of several ranks the first one publishes what all of them have.
"""

import threading
from collections.abc import Callable
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Self

from hps.common.json_text import Json
from hps.publish.options import PublishOptions
from hps.publish.publisher import Publisher
from hps.publish.source import Source
from hps.publish.store_origin import StoreOrigin
from hps.service.client.options import ClientConfig
from hps.train.checkpoint_graphs import CheckpointGraphs
from hps.train.ranks import TrainingRanks

if TYPE_CHECKING:
    from hps.service.client.parameter_server import RemoteParameterServer
    from hps.service.client.publish_origin import ServiceCheckpoint
    from hps.train.options import TrainOptions
    from hps.train.trainer import Trainer


class RunPublisher:
    """Publishes the newest checkpoint of a run whenever it is told of one. A context manager.

    A checkpoint that comes while another one is being published waits; of several that wait the
    newest is published.

    Attributes:
        done: what was published so far, as `Publisher.publish` gives it, with `examples`.
        error: what the last attempt met, in words; None: nothing.

    Args:
        options: of the run.
        ranks: that train together.
        say: told of what could not be published.
        held: of a store that this process trains, as StoreOrigin takes it.
    """

    def __init__(
        self,
        options: "TrainOptions",
        ranks: TrainingRanks,
        say: Callable[[str], object],
        held: Callable[[], object] | None,
    ) -> None:
        self.done: list[Json] = []
        self.error: str | None = None
        self._say = say
        self._publisher: Publisher[Source] | Publisher[ServiceCheckpoint] | None = None
        self._client: RemoteParameterServer | None = None
        self._changed = threading.Condition()
        self._wanted: int | None = None  # examples that the newest checkpoint has seen
        self._is_over = False
        self._thread: threading.Thread | None = None
        self._graphs: CheckpointGraphs | None = None
        self._has_begun = False
        if options.publish is not None and ranks.rank == 0:
            if options.publish_onnx:
                self._graphs = CheckpointGraphs(options.store)
            asked = PublishOptions(graph=self._graphs)
            if options.remote is not None:
                self._publisher = self._of_servers(options.remote, options.publish, asked)
            else:
                assert options.store is not None, "checked by TrainOptions"
                origin = StoreOrigin(options.store, held)
                self._publisher = Publisher(origin, options.publish, asked)

    def _of_servers(
        self, remote: ClientConfig, place: str, asked: PublishOptions
    ) -> "Publisher[ServiceCheckpoint]":
        """By a client of its own: what the other one's calls are told is for who trains. It changes
        no row, and so needs no name."""
        from hps.service.client.parameter_server import RemoteParameterServer  # imports gRPC

        self._client = client = RemoteParameterServer.of(replace(remote, client_id=None))
        try:
            client.publishing.check(place)  # before anything is trained
        except BaseException:
            client.close()
            raise
        return client.publishing.publisher(place, asked)

    def begin(self, trainer: "Trainer") -> None:
        """The run's model is there: publishing may begin.

        With `publish_onnx` its graph is exported now, in the thread that trains: while torch
        exports, what asks whether it is being compiled is told so in all threads.

        Raises:
            ConfigError: it cannot be exported.
        """
        if self._graphs is not None:
            self._graphs.export(trainer.recipe, trainer.model)
        self._has_begun = True
        if self._wanted is not None:
            self.tell(self._wanted)

    def tell(self, examples: int) -> None:
        """A checkpoint was taken, after so many examples; returns at once."""
        if self._publisher is None:
            return
        with self._changed:
            self._wanted = examples
            if self._thread is None and self._has_begun:
                self._thread = threading.Thread(target=self._work, name="hps-publish", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def finish(self) -> None:
        """Waits until all that was told is published, or could not be."""
        with self._changed:
            self._is_over = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()
        if self._publisher is not None:
            self._publisher.close()
        if self._client is not None:
            self._client.close()

    def _work(self) -> None:
        while True:
            with self._changed:
                while self._wanted is None and not self._is_over:
                    self._changed.wait()
                examples, self._wanted = self._wanted, None
            if examples is None:
                return
            self._publish(examples)

    def _publish(self, examples: int) -> None:
        assert self._publisher is not None, "nothing to publish with"
        try:
            made = self._publisher.publish()
        except Exception as error:  # whatever it is, training goes on and the next one is tried
            self.error = f"{type(error).__name__}: {error}"
            self._say(f"not published: {error}")
            return
        self.error = None
        if made["kind"] is not None:
            self.done.append({**made, "examples": examples})

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.finish()
