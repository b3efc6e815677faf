#pragma once

#include <string>
#include <utility>
#include <vector>

#include "training/dist/collectives.h"

namespace tandem::training {

// A fact that must be the same on all ranks.
struct SharedFact {
  std::string name;   // "the program", "training data"
  std::string value;  // a hash, or a short text
  std::string advice;
};

// Compares the facts of all ranks. Throws kFailedPrecondition on every rank, naming the fact, two
// ranks that differ, and their hosts.
void CheckAgreement(Collectives& ranks, const std::vector<SharedFact>& facts);

}  // namespace tandem::training
