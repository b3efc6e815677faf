#pragma once

#include <span>
#include <string>

namespace CLI {
class App;
class ParseError;
}  // namespace CLI

namespace tandem::server {

// Follows `words` from `root` as long as they name verbs: "checkpoint", "ls". Stops at the first
// flag and at a verb without subcommands. Throws kInvalidArgument for an unknown verb, with the
// nearest known one.
const CLI::App& FindVerb(const CLI::App& root, std::span<const std::string> words);

// The verb as a user types it: "tandem checkpoint ls".
std::string VerbPath(const CLI::App& verb);

// Message for words that the verb of a failed parse does not know, with the nearest flag.
std::string UnknownWordMessage(const CLI::App& root);

// Message for any other fault of a command line: a missing argument, a value that is not allowed.
std::string WrongUsageMessage(const CLI::App& root, const CLI::ParseError& error);

}  // namespace tandem::server
