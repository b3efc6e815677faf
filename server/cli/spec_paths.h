#pragma once

namespace tandem::training {
struct TrainSpec;
}

namespace tandem::server {

// Replaces hub names (ORG/NAME) in a spec by local paths: downloads models, and finds data sets in
// the hub's cache. Not for specs of requests, whose paths must lie below the model root.
void FindSpecPaths(training::TrainSpec& spec);

}  // namespace tandem::server
