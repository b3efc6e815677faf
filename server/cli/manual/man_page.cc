#include "server/cli/manual/man_page.h"

#include <array>
#include <cstdint>
#include <cstdio>
#include <string_view>

#include "config/app_config.h"
#include "engine/base/utf8.h"
#include "server/cli/manual/examples.h"
#include "server/cli/manual/exit_codes_doc.h"
#include "server/cli/manual/help_text.h"
#include "server/wire/version.h"

namespace tandem::server {
namespace {

struct NamedFact {
  const char* name;
  const char* meaning;
};

constexpr NamedFact kEnvironment[] = {
    {"TANDEM_FORCE_ISA",
     "reference, avx2, avxvnni, avx512 or neon: use the kernels of that instruction set"},
    {"TANDEM_REPRODUCIBLE", "1: use kernels that give the same bits on every CPU"},
    {"NO_COLOR", "if not empty: no colours"},
    {"XDG_CACHE_HOME", "packed weights are in its directory tandem; default ~/.cache"},
    {"XDG_DATA_HOME", "data of servers is in its directory tandem; default ~/.local/share"},
    {"HF_HUB_CACHE, HF_HOME", "cache of downloaded models; default ~/.cache/huggingface/hub"},
    {"HF_TOKEN, HF_TOKEN_PATH", "token for gated and private models of the hub"},
    {"HF_ENDPOINT", "the hub, or a mirror; default https://huggingface.co"},
    {"HF_HUB_OFFLINE", "1: use the cache only"},
    {"AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN, AWS_PROFILE",
     "keys for s3:// URLs, or the profile of ~/.aws/credentials that has them"},
    {"AWS_REGION, AWS_ENDPOINT_URL", "region and server of s3:// URLs"},
    {"GS_ACCESS_KEY_ID, GS_SECRET_ACCESS_KEY", "HMAC keys for gs:// URLs"},
    {"HTTPS_PROXY, HTTP_PROXY, ALL_PROXY, NO_PROXY", "proxies of downloads"},
};

constexpr NamedFact kFiles[] = {
    {"~/.cache/tandem", "packed weights, shared by all programs of a user"},
    {"~/.local/share/tandem", "default data directory of servers"},
    {"~/.local/share/tandem/admin.key", "admin key that the script ./serve creates"},
};

// The character as troff's escape "\\[u2026]"; whole UTF-8 only. Formatters differ in the encodings
// that they read.
std::string TroffCharacter(std::string_view bytes) {
  uint32_t code = static_cast<unsigned char>(bytes.front()) & (0xFFu >> (bytes.size() + 1));
  for (const char c : bytes.substr(1)) code = code << 6 | (static_cast<unsigned char>(c) & 0x3Fu);
  std::array<char, 16> text{};
  std::snprintf(text.data(), text.size(), "\\[u%04X]", code & 0x1FFFFF);
  return text.data();
}

// Text that troff prints unchanged, also at the beginning of a line.
std::string TroffText(std::string_view text) {
  std::string out;
  bool starts_line = true;
  for (size_t at = 0; at < text.size(); ++at) {
    const char c = text[at];
    if (const size_t n = WholeCharacterBytes(text.substr(at)); n > 1) {
      out += TroffCharacter(text.substr(at, n));
      at += n - 1;
      starts_line = false;
      continue;
    }
    if (starts_line && (c == '.' || c == '\'')) out += "\\&";
    starts_line = c == '\n';
    switch (c) {
      case '\\':
        out += "\\e";
        break;
      case '-':
        out += "\\-";
        break;
      case '\'':
        out += "\\(aq";
        break;
      case '`':
        out += "\\(ga";
        break;
      case '^':
        out += "\\(ha";
        break;
      case '~':
        out += "\\(ti";
        break;
      default:
        out += c;
    }
  }
  return out;
}

std::string Bold(std::string_view text) { return "\\fB" + TroffText(text) + "\\fR"; }

std::string Upper(std::string text) {
  for (char& c : text) {
    if (c >= 'a' && c <= 'z') c = static_cast<char>(c - 'a' + 'A');
  }
  return text;
}

std::string Entry(const std::string& label, std::string_view text) {
  return ".TP\n" + label + "\n" + (text.empty() ? "\\&" : TroffText(text)) + "\n";
}

std::string Section(const std::string& title) { return ".SH " + title + "\n"; }

std::string LabelOf(const OptionDoc& option) {
  if (option.flags.empty()) return "\\fI" + TroffText(option.name) + "\\fR";
  std::string label;
  for (const std::string& flag : option.flags) label += (label.empty() ? "" : ", ") + Bold(flag);
  return option.value.empty() ? label : label + " \\fI" + TroffText(option.value) + "\\fR";
}

std::string EntriesOf(const std::vector<OptionDoc>& options) {
  std::string out;
  for (const OptionDoc& option : options) out += Entry(LabelOf(option), FullHelp(option));
  return out;
}

std::string Lines(std::string_view text) { return ".PP\n.nf\n" + TroffText(text) + "\n.fi\n"; }

std::string Examples(const VerbDoc& verb) {
  std::string out;
  for (const VerbExample& example : ExamplesOf(verb.path)) {
    out += ".PP\n" + TroffText(example.effect) + ":\n.PP\n.nf\n.RS 4\n" +
           TroffText(example.command) + "\n.RE\n.fi\n";
  }
  for (const VerbDoc& child : verb.verbs) out += Examples(child);
  return out;
}

std::string Header(const std::string& name, int section, std::string_view summary) {
  const std::string number = std::to_string(section);
  return ".TH " + Upper(TroffText(name)) + " " + number + " \"\" \"tandem " + VersionNumber() +
         "\" \"Tandem\"\n" + Section("NAME") + TroffText(name) + " \\- " + TroffText(summary) +
         "\n";
}

// The verbs of a verb, each with its arguments and flags.
std::string Commands(const VerbDoc& verb) {
  std::string out;
  for (const VerbDoc& child : verb.verbs) {
    out += ".SS " + TroffText(UsageLine(child)) + "\n" + TroffText(child.summary) + ".\n" +
           EntriesOf(child.arguments) + EntriesOf(child.flags);
    if (!child.notes.empty()) out += Lines(child.notes);
    out += Commands(child);
  }
  return out;
}

std::string ExitStatusSection() {
  std::string out = Section("EXIT STATUS");
  for (const ExitCodeDoc& each : kExitCodeDocs) {
    out += Entry(Bold(std::to_string(each.code)), each.meaning);
  }
  return out;
}

std::string EnvironmentSection(bool is_server) {
  std::string out = Section("ENVIRONMENT");
  for (const config::ConfigKey& key : config::ConfigKeys()) {
    if (!is_server || key.environment.empty()) continue;
    out += Entry(Bold(key.environment),
                 "like --" + std::string(key.name) + ": " + std::string(key.effect));
  }
  for (const NamedFact& each : kEnvironment) out += Entry(Bold(each.name), each.meaning);
  return out;
}

std::string FilesSection() {
  std::string out = Section("FILES");
  for (const NamedFact& each : kFiles)
    out += Entry("\\fI" + TroffText(each.name) + "\\fR", each.meaning);
  return out;
}

ManPage PageOfVerb(const VerbDoc& verb) {
  ManPage page{.name = "tandem-" + verb.name, .section = 1, .text = {}};
  page.text = Header(page.name, page.section, verb.summary) + Section("SYNOPSIS") +
              TroffText(UsageLine(verb)) + "\n";
  if (!verb.arguments.empty()) page.text += Section("ARGUMENTS") + EntriesOf(verb.arguments);
  page.text += Section("OPTIONS") + EntriesOf(verb.flags);
  if (!verb.verbs.empty()) page.text += Section("COMMANDS") + Commands(verb);
  if (!verb.notes.empty()) page.text += Section("NOTES") + Lines(verb.notes);
  page.text += ExitStatusSection() + EnvironmentSection(verb.name == "serve") + FilesSection();
  if (const std::string examples = Examples(verb); !examples.empty()) {
    page.text += Section("EXAMPLES") + examples;
  }
  page.text += Section("SEE ALSO") + ".BR tandem (1)";
  if (verb.name == "serve") page.text += ",\n.BR tandem.yaml (5)";
  page.text += "\n";
  return page;
}

ManPage PageOfProgram(const VerbDoc& root) {
  ManPage page{.name = "tandem", .section = 1, .text = {}};
  page.text = Header(page.name, page.section, "train and serve language models") +
              Section("SYNOPSIS") + "tandem \\fIVERB\\fR [flags] [arguments]\n" +
              Section("DESCRIPTION") + TroffText(root.summary) + "\n" + Section("OPTIONS") +
              EntriesOf(root.flags) + Section("COMMANDS");
  for (const VerbDoc& verb : root.verbs) {
    page.text += Entry(".BR tandem\\-" + TroffText(verb.name) + " (1)", verb.summary);
  }
  page.text += ExitStatusSection() + EnvironmentSection(true) + FilesSection() +
               Section("EXAMPLES") + Lines(FirstScreen(root)) + Section("SEE ALSO") +
               ".BR tandem.yaml (5)\n";
  return page;
}

ManPage PageOfConfiguration() {
  ManPage page{.name = "tandem.yaml", .section = 5, .text = {}};
  page.text = Header(page.name, page.section, "configuration of tandem serve") +
              Section("DESCRIPTION") +
              "A YAML file with one \\fIkey: value\\fR per line, for\n.BR \"tandem serve "
              "\\-\\-config\"\n\\fIFILE\\fR.\nEvery flag of\n.BR tandem\\-serve (1)\nis a key, "
              "without its dashes. Keys that are repeatable flags take lists. Environment "
              "variables override the file, and flags override both. Unknown keys are errors.\n" +
              Section("KEYS");
  for (const config::ConfigKey& key : config::ConfigKeys()) {
    std::string text(key.effect);
    if (!key.choices.empty()) {
      std::string words(key.choices);
      for (size_t at = 0; (at = words.find('|', at)) != std::string::npos;) {
        words.replace(at, 1, ", ");
      }
      text += "; one of " + words;
    }
    const std::string value = config::DefaultText(key);
    if (!value.empty()) text += " (default: " + value + ")";
    const std::string unit = key.unit.empty() ? "" : " \\fI" + TroffText(key.unit) + "\\fR";
    page.text += Entry(Bold(std::string(key.name) + ":") + unit, text);
  }
  page.text += Section("EXAMPLES") +
               Lines(
                   "model: [/srv/models/stories]\nhost: 0.0.0.0\nport: 8080\n"
                   "api-key-file: /etc/tandem/keys\nmemory: 16G") +
               Section("SEE ALSO") + ".BR tandem\\-serve (1)\n";
  return page;
}

}  // namespace

std::vector<ManPage> ManPages(const VerbDoc& root) {
  std::vector<ManPage> pages = {PageOfProgram(root)};
  for (const VerbDoc& verb : root.verbs) pages.push_back(PageOfVerb(verb));
  pages.push_back(PageOfConfiguration());
  return pages;
}

}  // namespace tandem::server
