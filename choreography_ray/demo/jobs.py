"""The example job: a full-text index of a tree of Python files, made in three stages.

Stage 0 surveys the tree, stage 10 indexes groups of files side by side, and stage 20 merges what they left and
publishes one index. A body may be performed more than once [S6.7]: each writes under a name of its own and renames
when it is done, and the last one finds out whether its own run was published already.

The folders are paths on the machine that performs the steps: on a cluster of several machines, shared ones.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

from pydantic import BaseModel

from choreography_ray.authoring.result import JobStepResult
from choreography_ray.demo import index
from choreography_ray.job import Job, JobState, StepDetails
from choreography_ray.model import StepHosting
from choreography_ray.step import BlockingStepContext, JobStep, JobStepState

SURVEY_STAGE, INDEX_STAGE, PUBLISH_STAGE = 0, 10, 20


class IndexRequest(BaseModel):
    """Which tree to index, where to publish (both absolute), in how many groups. `run` names this making of it."""

    root: str
    out: str
    run: str
    groups: int = 36

    @property
    def parts(self) -> Path:
        """Where the parts of this run are kept until it is published."""
        return Path(self.out, "parts", self.run)


class FolderState(JobStepState):
    """What the bodies of the first and the last stage need to know."""

    request: IndexRequest = IndexRequest(root="", out="", run="")


class SurveyFiles(JobStep[IndexRequest, int, FolderState]):
    """Writes the list of files with their sizes."""

    def initialize_state(self, request: IndexRequest) -> None:
        self.state.request = request

    def perform_step(self, state: FolderState, context: BlockingStepContext) -> int:
        files = index.source_files(Path(state.request.root))
        index.write_survey(files, Path(state.request.out, index.SURVEY_NAME))
        return len(files)


class GroupRequest(BaseModel):
    """The files of one group, below the root, and the part that they become."""

    root: str
    paths: list[str]
    part: str


class GroupState(JobStepState):
    """The group, as the body sees it."""

    group: GroupRequest = GroupRequest(root="", paths=[], part="")


class GroupIndexed(BaseModel):
    """What one group came to."""

    files: int
    words: int


class IndexFiles(JobStep[GroupRequest, GroupIndexed, GroupState]):
    """Indexes a group of files into a part of its own."""

    # Some dozens of short steps: warm actors perform many each, since one takes half a second of CPU to start.
    hosting = StepHosting.SHARED_ACTORS

    def initialize_state(self, request: GroupRequest) -> None:
        self.state.group = request

    def perform_step(self, state: GroupState, context: BlockingStepContext) -> GroupIndexed:
        group = state.group
        words = index.write_part(Path(group.root), group.paths, Path(group.part), context.cancelled.raise_if_set)
        return GroupIndexed(files=len(group.paths), words=words)


class PublishIndex(JobStep[IndexRequest, int, FolderState]):
    """Merges the parts, publishes the index, and deletes the parts. Fails when a surveyed file is missing."""

    def initialize_state(self, request: IndexRequest) -> None:
        self.state.request = request

    def perform_step(self, state: FolderState, context: BlockingStepContext) -> int:
        request = state.request
        expected = [file.path for file in index.read_survey(Path(request.out, index.SURVEY_NAME))]
        parts = sorted(request.parts.glob("*.jsonl"))
        facts = index.publish(parts, expected, Path(request.out, index.INDEX_NAME), request.run)
        shutil.rmtree(request.parts, ignore_errors=True)
        return facts.size


class IndexState(JobState):
    """Totals of the groups that are indexed."""

    files: int = 0
    words: int = 0


class IndexStandardLibrary(Job[IndexRequest, IndexState]):
    """Surveys, indexes and publishes. Kept when it has completed, so that it can be looked at."""

    keep_after_completed = True

    def prepare_steps(self, request: IndexRequest) -> Iterator[StepDetails]:
        yield self.create_step(SurveyFiles, request, stage=SURVEY_STAGE, step_id="survey")
        files = index.source_files(Path(request.root))
        for number, group in enumerate(index.balanced_groups(files, request.groups)):
            name = f"group-{number:03}"
            yield self.create_step(
                IndexFiles,
                GroupRequest(
                    root=request.root,
                    paths=[file.path for file in group],
                    part=str(request.parts / f"{name}.jsonl"),
                ),
                stage=INDEX_STAGE,
                step_id=name,
            )
        yield self.create_step(PublishIndex, request, stage=PUBLISH_STAGE, step_id="publish")

    def get_job_details(self) -> str:
        return f"full-text index of {self.request.root}"

    def on_step_completed_or_stopped(self, step_id: str, result: JobStepResult[object]) -> None:
        # Saved together with the outcome, exactly once, however often the body ran [S6.5].
        if isinstance(result.value, GroupIndexed):
            self.state.files += result.value.files
            self.state.words += result.value.words
