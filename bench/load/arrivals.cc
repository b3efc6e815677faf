#include "bench/load/arrivals.h"

#include "bench/measure/random_source.h"
#include "engine/base/error.h"

namespace tandem::bench {
namespace {

constexpr uint64_t kArrivalStream = 5;
constexpr size_t kMaxArrivals = 10'000'000;

}  // namespace

std::vector<double> ArrivalTimes(const ArrivalOptions& options) {
  if (options.requests_per_s <= 0) {
    throw Error(ErrorCode::kInvalidArgument, "the arrival rate must be above 0");
  }
  if (options.requests <= 0 && options.duration_s <= 0) {
    throw Error(ErrorCode::kInvalidArgument,
                "an arrival schedule needs a number of requests or a duration");
  }
  RandomSource random(options.seed, kArrivalStream);
  const bool is_poisson = options.process == ArrivalOptions::Process::kPoisson;
  std::vector<double> times;
  double at = 0;
  while (true) {
    const auto n = static_cast<int64_t>(times.size());
    // A constant process multiplies instead of adding, so that it does not drift.
    at = is_poisson ? at + random.Exponential() / options.requests_per_s
                    : static_cast<double>(n) / options.requests_per_s;
    if (options.requests > 0 ? n == options.requests : at >= options.duration_s) return times;
    if (times.size() == kMaxArrivals) {
      throw Error(ErrorCode::kInvalidArgument, "the rate and the duration give more than " +
                                                   std::to_string(kMaxArrivals) +
                                                   " arrivals: lower one of them");
    }
    times.push_back(at);
  }
}

}  // namespace tandem::bench
