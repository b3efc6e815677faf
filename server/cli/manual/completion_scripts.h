#pragma once

#include <string>

#include "server/cli/manual/verb_doc.h"

namespace tandem::server {

// Scripts that complete verbs, flags, allowed values and paths of the program. They hold all words
// themselves, so a completion starts no process.
std::string BashCompletion(const VerbDoc& root);
std::string ZshCompletion(const VerbDoc& root);
std::string FishCompletion(const VerbDoc& root);

}  // namespace tandem::server
