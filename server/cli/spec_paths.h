#pragma once

#include <filesystem>

namespace tandem::training {
struct TrainSpec;
}

namespace tandem::server {

// Replaces hub names (ORG/NAME) and objects (s3://, gs://) in a spec by local paths: downloads
// models and objects, and finds data sets of the hub in its cache. Not for specs of requests, whose
// paths must lie below the model root.
void FindSpecPaths(training::TrainSpec& spec);

// The newest checkpoint of a run's directory `checkpoints`; other paths unchanged. The name of a
// checkpoint is its step.
std::filesystem::path NewestCheckpointIn(const std::filesystem::path& path);

}  // namespace tandem::server
