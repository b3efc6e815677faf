#pragma once

#include <string>
#include <string_view>

#include "server/cli/manual/verb_doc.h"

namespace tandem::server {

// The text of `tandem VERB --help`, in lines of at most `columns` where words allow it.
std::string HelpText(const VerbDoc& verb, int columns);

// The text of `tandem` alone: the commands a newcomer needs. `root` is the program.
std::string FirstScreen(const VerbDoc& root);

// How the verb is called: "tandem convert [flags] [source] [target]".
std::string UsageLine(const VerbDoc& verb);

// The names of an option with its value: "-m, --model PATH".
std::string OptionLabel(const OptionDoc& option);

}  // namespace tandem::server
