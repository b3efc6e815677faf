#include "server/cli/manual/completion_scripts.h"

#include <algorithm>
#include <functional>
#include <string_view>
#include <vector>

namespace tandem::server {
namespace {

std::string JoinedWords(const std::vector<std::string>& words, std::string_view separator = " ") {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : std::string(separator)) + word;
  return text;
}

std::vector<std::string> NamesOf(const std::vector<VerbDoc>& verbs) {
  std::vector<std::string> names;
  for (const VerbDoc& verb : verbs) names.push_back(verb.name);
  return names;
}

std::vector<std::string> FlagWords(const VerbDoc& verb) {
  std::vector<std::string> flags;
  for (const OptionDoc& option : verb.flags) {
    flags.insert(flags.end(), option.flags.begin(), option.flags.end());
  }
  return flags;
}

// "tandem checkpoint ls" without the program.
std::string PathOf(const VerbDoc& verb) {
  const size_t space = verb.path.find(' ');
  return space == std::string::npos ? "" : verb.path.substr(space + 1);
}

void ForEachVerb(const VerbDoc& verb, const std::function<void(const VerbDoc&)>& visit) {
  visit(verb);
  for (const VerbDoc& child : verb.verbs) ForEachVerb(child, visit);
}

// The words that a verb's first argument may be; empty: a path or any word.
std::vector<std::string> FirstWords(const VerbDoc& root, const VerbDoc& verb) {
  if (!verb.verbs.empty()) return NamesOf(verb.verbs);
  if (verb.name == "help" || verb.name == "man") {
    std::vector<std::string> words = NamesOf(root.verbs);
    if (verb.name == "man") words.insert(words.end(), {"tandem", "tandem.yaml"});
    return words;
  }
  return verb.arguments.empty() ? std::vector<std::string>() : verb.arguments.front().choices;
}

std::string Backslashed(std::string_view text, std::string_view special) {
  std::string out;
  for (const char c : text) {
    if (special.find(c) != std::string_view::npos) out += '\\';
    out += c;
  }
  return out;
}

// In single quotes for a POSIX shell.
std::string InSingleQuotes(std::string_view text) {
  std::string out = "'";
  for (const char c : text) out += c == '\'' ? std::string(R"('\'')") : std::string(1, c);
  return out + "'";
}

// --- bash ---

constexpr const char* kBashHead = R"(# bash completion for tandem, made by `tandem completion bash`
_tandem_words() { mapfile -t COMPREPLY < <(compgen -W "$1" -- "$2"); }
_tandem_paths() {
  compopt -o filenames 2>/dev/null
  mapfile -t COMPREPLY < <(compgen "$1" -- "$2")
}
_tandem() {
  local cur="${COMP_WORDS[COMP_CWORD]}" flag="${COMP_WORDS[COMP_CWORD-1]}" verb="" i
  COMPREPLY=()
  # bash splits --flag=value into three words.
  if [[ "$cur" == "=" ]]; then
    cur=""
  elif [[ "$flag" == "=" ]]; then
    flag="${COMP_WORDS[COMP_CWORD-2]}"
  fi
  for ((i = 1; i < COMP_CWORD; i++)); do
    case "$verb ${COMP_WORDS[i]}" in
)";

std::string BashValues(const VerbDoc& verb) {
  std::string out;
  for (const OptionDoc& option : verb.flags) {
    if (option.value.empty()) continue;
    std::vector<std::string> patterns;
    for (const std::string& flag : option.flags)
      patterns.push_back(InSingleQuotes(PathOf(verb) + ":" + flag));
    std::string action = ":";
    if (!option.choices.empty()) {
      action = "_tandem_words " + InSingleQuotes(JoinedWords(option.choices)) + " \"$cur\"";
    } else if (option.kind == ValueKind::kDirectory) {
      action = "_tandem_paths -d \"$cur\"";
    } else if (option.kind == ValueKind::kFile) {
      action = "_tandem_paths -f \"$cur\"";
    }
    out += "    " + JoinedWords(patterns, "|") + ") " + action + "; return ;;\n";
  }
  return out;
}

// --- zsh ---

std::string ZshFunctionOf(const VerbDoc& verb) {
  std::string name = PathOf(verb).empty() ? "_tandem" : "_tandem__";
  for (const char c : PathOf(verb)) name += c == ' ' || c == '-' ? '_' : c;
  return name;
}

std::string ZshText(std::string_view text) { return Backslashed(text, "[]:\\"); }

std::string ZshValue(const OptionDoc& option) {
  if (option.value.empty()) return "";
  std::string action;
  if (!option.choices.empty()) {
    action = "(" + JoinedWords(option.choices) + ")";
  } else if (option.kind == ValueKind::kDirectory) {
    action = "_files -/";
  } else if (option.kind == ValueKind::kFile) {
    action = "_files";
  }
  return ":" + ZshText(option.value) + ":" + action;
}

std::string ZshFunction(const VerbDoc& root, const VerbDoc& verb) {
  std::string out = ZshFunctionOf(verb) + "() {\n  local curcontext=\"$curcontext\" state line\n" +
                    "  _arguments -C";
  for (const OptionDoc& option : verb.flags) {
    for (const std::string& flag : option.flags) {
      const std::string equals = flag.starts_with("--") && !option.value.empty() ? "=" : "";
      out += " \\\n    " + InSingleQuotes((option.is_repeatable ? "*" : "") + flag + equals + "[" +
                                          ZshText(option.help) + "]" + ZshValue(option));
    }
  }
  const std::vector<std::string> words = FirstWords(root, verb);
  if (verb.verbs.empty()) {
    if (!words.empty()) out += " \\\n    " + InSingleQuotes("1:word:(" + JoinedWords(words) + ")");
    return out + " \\\n    '*:file:_files'\n}\n";
  }
  out += " \\\n    '1: :->verb' '*:: :->rest'\n  case $state in\n    verb)\n      local -a verbs=(";
  for (const VerbDoc& child : verb.verbs) {
    out += "\n        " + InSingleQuotes(child.name + ":" + child.summary);
  }
  out += "\n      )\n      _describe verb verbs\n      ;;\n    rest)\n      case $line[1] in\n";
  for (const VerbDoc& child : verb.verbs) {
    out += "        " + child.name + ") " + ZshFunctionOf(child) + " ;;\n";
  }
  return out + "      esac\n      ;;\n  esac\n}\n";
}

// --- fish ---

// A condition that holds while this verb's words are typed.
std::string FishCondition(const VerbDoc& verb) {
  const std::string path = PathOf(verb);
  std::string condition;
  if (path.empty()) {
    condition = "__fish_use_subcommand";
  } else {
    for (size_t at = 0; at <= path.size();) {
      const size_t end = std::min(path.find(' ', at), path.size());
      condition += (condition.empty() ? "" : "; and ") +
                   ("__fish_seen_subcommand_from " + path.substr(at, end - at));
      at = end + 1;
    }
    if (!verb.verbs.empty()) {
      condition += "; and not __fish_seen_subcommand_from " + JoinedWords(NamesOf(verb.verbs));
    }
  }
  return condition;
}

std::string FishText(std::string_view text) { return "'" + Backslashed(text, "'\\") + "'"; }

std::string FishVerb(const VerbDoc& root, const VerbDoc& verb) {
  const std::string begin = "complete -c tandem -n " + FishText(FishCondition(verb));
  std::string out;
  for (const VerbDoc& child : verb.verbs) {
    out += begin + " -f -a " + child.name + " -d " + FishText(child.summary) + "\n";
  }
  if (const auto words = FirstWords(root, verb); verb.verbs.empty() && !words.empty()) {
    out += begin + " -f -a " + FishText(JoinedWords(words)) + "\n";
  }
  for (const OptionDoc& option : verb.flags) {
    out += begin;
    for (const std::string& flag : option.flags) {
      out += flag.starts_with("--") ? " -l " + flag.substr(2) : " -s " + flag.substr(1);
    }
    if (!option.choices.empty()) {
      out += " -x -a " + FishText(JoinedWords(option.choices));
    } else if (option.kind == ValueKind::kDirectory) {
      out += " -x -a '(__fish_complete_directories)'";
    } else if (!option.value.empty()) {
      out += option.kind == ValueKind::kFile ? " -r -F" : " -x";
    }
    out += " -d " + FishText(option.help) + "\n";
  }
  return out;
}

}  // namespace

std::string BashCompletion(const VerbDoc& root) {
  std::string out = kBashHead;
  std::vector<std::string> patterns;
  ForEachVerb(root, [&](const VerbDoc& verb) {
    const std::string path = PathOf(verb);
    if (path.empty()) return;
    patterns.push_back(InSingleQuotes((path.find(' ') == std::string::npos ? " " : "") + path));
  });
  out += "      " + JoinedWords(patterns, "|") +
         ")\n        verb=\"${verb:+$verb }${COMP_WORDS[i]}\" ;;\n";
  out += "      *) break ;;\n    esac\n  done\n  case \"$verb:$flag\" in\n";
  ForEachVerb(root, [&](const VerbDoc& verb) { out += BashValues(verb); });
  out += "  esac\n  local flags=\"\" words=\"\"\n  case \"$verb\" in\n";
  ForEachVerb(root, [&](const VerbDoc& verb) {
    out += "    " + InSingleQuotes(PathOf(verb)) +
           ")\n      flags=" + InSingleQuotes(JoinedWords(FlagWords(verb))) +
           "\n      words=" + InSingleQuotes(JoinedWords(FirstWords(root, verb))) + " ;;\n";
  });
  return out + R"(  esac
  if [[ "$cur" == -* ]]; then
    _tandem_words "$flags" "$cur"
  elif [[ -n "$words" ]]; then
    _tandem_words "$words" "$cur"
  else
    _tandem_paths -f "$cur"
  fi
}
complete -F _tandem tandem
)";
}

std::string ZshCompletion(const VerbDoc& root) {
  std::string out = "#compdef tandem\n# zsh completion, made by `tandem completion zsh`\n";
  ForEachVerb(root, [&](const VerbDoc& verb) { out += ZshFunction(root, verb); });
  return out + "_tandem \"$@\"\n";
}

std::string FishCompletion(const VerbDoc& root) {
  std::string out = "# fish completion, made by `tandem completion fish`\n";
  ForEachVerb(root, [&](const VerbDoc& verb) { out += FishVerb(root, verb); });
  return out;
}

}  // namespace tandem::server
