#pragma once

#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace tandem::server {

// How a shell completes a value.
enum class ValueKind { kNone, kFile, kDirectory };

// A flag or an argument of a verb.
struct OptionDoc {
  std::vector<std::string> flags = {};  // "--model", "-m"; empty: an argument
  std::string name = {};                // of an argument
  std::string value = {};               // placeholder of the value; empty: takes none
  ValueKind kind = ValueKind::kNone;
  std::vector<std::string> choices = {};  // the only allowed values; empty: any
  std::string limits = {};                // "from 1 to 32"; empty: none
  std::string default_text = {};
  std::string help = {};
  bool is_required = false;
  bool is_repeatable = false;
};

// A verb, as help, man pages and completions describe it.
struct VerbDoc {
  std::string path = {};     // as typed: "tandem checkpoint ls"
  std::string name = {};     // the last word
  std::string summary = {};  // one line
  std::string notes = {};    // paragraphs after the flags; empty: none
  std::vector<OptionDoc> arguments = {};
  std::vector<OptionDoc> flags = {};  // --help first
  std::vector<VerbDoc> verbs = {};    // its verbs, in their order
};

// Reads the declared options of a verb and its verbs.
VerbDoc DescribeVerb(const CLI::App& verb);

// The help of an option as a phrase: its text, its allowed values and its default.
std::string FullHelp(const OptionDoc& option);

}  // namespace tandem::server
