#include "training/dist/agreement.h"

#include <unistd.h>

#include <array>

#include "engine/base/error.h"

namespace tandem::training {
namespace {

std::string HostName() {
  std::array<char, 256> name{};
  return gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "unknown";
}

}  // namespace

void CheckAgreement(Collectives& ranks, const std::vector<SharedFact>& facts) {
  const std::vector<std::string> hosts = ranks.AllGatherText(HostName());
  for (const SharedFact& fact : facts) {
    const std::vector<std::string> values = ranks.AllGatherText(fact.value);
    for (size_t r = 1; r < values.size(); ++r) {
      if (values[r] == values[0]) continue;
      throw Error(ErrorCode::kFailedPrecondition,
                  "the ranks differ in " + fact.name + ": rank 0 on " + hosts[0] + " has " +
                      values[0] + ", rank " + std::to_string(r) + " on " + hosts[r] + " has " +
                      values[r] + "; " + fact.advice);
    }
  }
}

}  // namespace tandem::training
