#pragma once

#include <functional>
#include <string>
#include <vector>

namespace tandem::bench {

// The middle of an odd number of values, the mean of the two middle ones otherwise.
double Median(std::vector<double> values);

// What the work takes of this thread's processor: for work that never waits.
double ThreadCpuSeconds(const std::function<void()>& work);

// Runs a peer's command through the shell and returns the last number that stands before
// "tokens/s" in what it prints; throws kFailedPrecondition when it fails or prints none. The way
// to hold a bench against a program we do not ship.
double RunPeer(const std::string& command);

}  // namespace tandem::bench
