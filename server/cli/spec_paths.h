#pragma once

namespace tandem::training {
struct TrainSpec;
}

namespace tandem::server {

// Names of the hub in a spec that a user of this machine gave: models are pulled, data sets are
// looked for in the hub's cache. Not for jobs: what a request names must lie below the server's own
// directory.
void FindSpecPaths(training::TrainSpec& spec);

}  // namespace tandem::server
