#pragma once

#include <functional>

#include "server/cli/progress/shown_progress.h"
#include "training/dist/launch.h"
#include "training/run/run.h"

namespace tandem::server {

// Trains as one rank of several, over MPI. `shown`, which may be null, also
// shows the run's events. `finish` writes the result of the run; it is called on
// the first rank only, before any rank ends. Returns the exit code. After a fault on this rank the
// caller must end the process: the launcher then ends the other ranks.
int TrainAsRank(const training::TrainSpec& spec, const training::LaunchedRank& launched,
                const ShownProgress* shown,
                const std::function<void(const training::TrainOutcome&)>& finish);

}  // namespace tandem::server
