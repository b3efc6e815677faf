#pragma once

#include <functional>
#include <string>
#include <vector>

namespace tandem::bench {

// Returns the middle value, or the mean of the two middle ones.
double Median(std::vector<double> values);

// Returns this thread's processor time for work that never waits.
double ThreadCpuSeconds(const std::function<void()>& work);

// Runs a peer's command through the shell and returns the last number before "tokens/s" in its
// output. Throws kFailedPrecondition if it fails or prints none. This compares a bench with
// programs we do not ship.
double RunPeer(const std::string& command);

}  // namespace tandem::bench
