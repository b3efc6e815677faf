#include "server/deploy/secret_scan.h"

#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <span>

#include "engine/base/error.h"
#include "engine/io/posix_file.h"

namespace tandem::server {
namespace {

namespace fs = std::filesystem;

constexpr size_t kPieceBytes = 256 * 1024;
// Longer lines are scanned in pieces that overlap by this much, so that no token is cut in two.
constexpr size_t kOverlapBytes = 1024;

bool IsAlnum(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}
bool IsUpperAlnum(char c) { return IsAlnum(c) && !(c >= 'a' && c <= 'z'); }
bool IsTokenChar(char c) { return IsAlnum(c) || c == '_' || c == '-'; }
bool IsWord(char c) { return IsAlnum(c) || c == '_'; }

// A token by its prefix and the characters that follow it.
struct TokenRule {
  std::string_view prefix;
  bool (*is_rest)(char);
  size_t least;  // characters after the prefix
  std::string_view what;
};

constexpr TokenRule kTokens[] = {
    {"hf_", IsAlnum, 20, "access token of the Hugging Face hub"},
    {"api_org_", IsAlnum, 20, "access token of the Hugging Face hub"},
    {"sk-", IsTokenChar, 20, "API key (sk-)"},
    {"AKIA", IsUpperAlnum, 16, "AWS access key"},
    {"ASIA", IsUpperAlnum, 16, "AWS access key"},
    {"AIza", IsTokenChar, 35, "Google API key"},
    {"ya29.", IsTokenChar, 20, "Google access token"},
    {"GOCSPX-", IsTokenChar, 20, "Google client secret"},
    {"ghp_", IsAlnum, 30, "GitHub token"},
    {"gho_", IsAlnum, 30, "GitHub token"},
    {"ghs_", IsAlnum, 30, "GitHub token"},
    {"github_pat_", IsTokenChar, 30, "GitHub token"},
    {"glpat-", IsTokenChar, 20, "GitLab token"},
    {"xoxb-", IsTokenChar, 20, "Slack token"},
    {"xoxp-", IsTokenChar, 20, "Slack token"},
    {"dckr_pat_", IsTokenChar, 20, "Docker token"},
    {"npm_", IsAlnum, 36, "npm token"},
    {"pypi-", IsTokenChar, 50, "PyPI token"},
};

bool HasToken(std::string_view line, const TokenRule& rule) {
  for (size_t at = line.find(rule.prefix); at != std::string_view::npos;
       at = line.find(rule.prefix, at + 1)) {
    if (at > 0 && IsWord(line[at - 1])) continue;  // inside of another word
    const std::string_view rest = line.substr(at + rule.prefix.size());
    const auto end = std::find_if_not(rest.begin(), rest.end(), rule.is_rest);
    if (static_cast<size_t>(end - rest.begin()) >= rule.least) return true;
  }
  return false;
}

bool HasPrivateKey(std::string_view line) {
  const size_t at = line.find("-----BEGIN ");
  return at != std::string_view::npos && line.find("PRIVATE KEY", at) != std::string_view::npos;
}

// eyJ….eyJ…: the base64 of two JSON objects.
bool HasWebToken(std::string_view line) {
  for (size_t at = line.find("eyJ"); at != std::string_view::npos; at = line.find("eyJ", at + 1)) {
    const std::string_view rest = line.substr(at);
    const auto end = std::find_if_not(rest.begin(), rest.end(), IsTokenChar);
    const auto length = static_cast<size_t>(end - rest.begin());
    if (length >= 12 && rest.substr(length).starts_with(".eyJ")) return true;
  }
  return false;
}

// scheme://user:password@host
bool HasPasswordInUrl(std::string_view line) {
  for (size_t at = line.find("://"); at != std::string_view::npos; at = line.find("://", at + 1)) {
    const std::string_view rest = line.substr(at + 3);
    const size_t end = std::min(rest.find_first_of("/ \t\"'<>`"), rest.size());
    const std::string_view authority = rest.substr(0, end);
    const size_t sign = authority.rfind('@');
    const size_t colon = authority.find(':');
    if (sign == std::string_view::npos || colon >= sign || colon + 1 == sign) continue;
    const std::string_view password = authority.substr(colon + 1, sign - colon - 1);
    if (password.find_first_of("${}*") == std::string_view::npos && password != "PASSWORD" &&
        password != "password") {
      return true;
    }
  }
  return false;
}

std::string Uppercase(std::string_view text) {
  std::string out(text);
  std::transform(out.begin(), out.end(), out.begin(),
                 [](char c) { return c >= 'a' && c <= 'z' ? static_cast<char>(c - 32) : c; });
  return out;
}

// The last part of a variable's name that holds a secret: DB_PASSWORD, HF_TOKEN.
bool NamesASecret(std::string_view name) {
  const std::string upper = Uppercase(name);
  constexpr std::string_view kEnds[] = {
      "PASSWORD", "PASSWD",     "PASSPHRASE", "SECRET",    "SECRET_KEY",  "API_KEY",
      "APIKEY",   "ACCESS_KEY", "TOKEN",      "ADMIN_KEY", "PRIVATE_KEY", "CLIENT-KEY-DATA"};
  return std::any_of(std::begin(kEnds), std::end(kEnds), [&](std::string_view end) {
    if (!upper.ends_with(end)) return false;
    const size_t rest = upper.size() - end.size();
    return rest == 0 || upper[rest - 1] == '_' || upper[rest - 1] == '-' || upper[rest - 1] == '.';
  });
}

// Names that end like a secret's and hold none.
bool IsPlainValue(std::string_view value) {
  if (value.size() < 6) return true;
  if (value.front() == '/' || value.front() == '.' || value.front() == '~') return true;  // a path
  if (value.find_first_of("$<>{}()[]") != std::string_view::npos) return true;
  const std::string upper = Uppercase(value);
  for (const std::string_view word :
       {"YOUR", "CHANGE", "CHOOSE", "EXAMPLE", "REPLACE", "REDACTED", "***", "XXXX", "NONE", "NULL",
        "TRUE", "FALSE", "VALUEFROM"}) {
    if (upper.starts_with(word)) return true;
  }
  return std::any_of(value.begin(), value.end(), [](char c) { return c == ' ' || c == '\t'; });
}

// Whether a key of YAML or JSON can follow `before`.
bool BeginsEntry(std::string_view before) {
  while (!before.empty() &&
         std::string_view(" \t\"'").find(before.back()) != std::string_view::npos) {
    before.remove_suffix(1);
  }
  return before.empty() || before.back() == '-' || before.back() == '{' || before.back() == ',';
}

// An assignment in the style of env files, YAML, JSON, HCL or shell: NAME=value, "name": "value".
bool HasAssignedSecret(std::string_view line) {
  for (size_t at = line.find_first_of("=:"); at != std::string_view::npos;
       at = line.find_first_of("=:", at + 1)) {
    size_t end = at;
    while (end > 0 && (line[end - 1] == ' ' || line[end - 1] == '"' || line[end - 1] == '\''))
      --end;
    size_t begin = end;
    while (begin > 0 && (IsTokenChar(line[begin - 1]) || line[begin - 1] == '.')) --begin;
    if (!NamesASecret(line.substr(begin, end - begin))) continue;
    // "the secret: word" in a sentence is no assignment.
    if (line[at] == ':' && !BeginsEntry(line.substr(0, begin))) continue;
    std::string_view value = line.substr(at + 1);
    value.remove_prefix(std::min(value.find_first_not_of(" \t"), value.size()));
    if (value.empty()) continue;
    if (value.front() == '"' || value.front() == '\'') {
      const char quote = value.front();
      value = value.substr(1, value.find(quote, 1) - 1);
    } else {
      value = value.substr(0, value.find_first_of(" \t\r;,&|"));
      // Code, not an assignment: `token = word;`, `token=f(word)`, `token: string`.
      if (line.ends_with(';') || value.find_first_of("*:") != std::string_view::npos) continue;
    }
    if (!IsPlainValue(value)) return true;
  }
  return false;
}

// The word after `key` in YAML, without quotes; empty: no such key.
std::string_view WordAfter(std::string_view line, std::string_view key) {
  for (size_t at = line.find(key); at != std::string_view::npos; at = line.find(key, at + 1)) {
    if (at > 0 && IsTokenChar(line[at - 1])) continue;
    std::string_view rest = line.substr(at + key.size());
    rest.remove_prefix(std::min(rest.find_first_not_of(" \t\"'"), rest.size()));
    return rest.substr(0, rest.find_first_of(" \t\r\"',}"));
  }
  return "";
}

// An entry of a container's environment, on one line or two: `- name: HF_TOKEN` and `value: …`.
bool HasSecretEntry(std::string_view line, std::string_view previous) {
  const std::string_view value = WordAfter(line, "value:");
  if (value.empty() || IsPlainValue(value)) return false;
  return NamesASecret(WordAfter(line, "name:")) || NamesASecret(WordAfter(previous, "name:"));
}

// Names of files that are secrets as a whole.
std::string SecretFile(std::string_view name) {
  if (name.ends_with(".tfstate") || name.find(".tfstate.") != std::string_view::npos) {
    return "state of Terraform, which contains secrets";
  }
  if (name == "kubeconfig" || name == "id_rsa" || name == "id_ed25519" || name == ".netrc" ||
      name == ".pgpass" || name == ".git-credentials") {
    return "file of credentials";
  }
  return "";
}

void ScanFile(const fs::path& path, std::vector<FoundSecret>& found) {
  struct stat status {};
  const engine::FileDescriptor file = engine::OpenRegularFile(path, status);
  const auto size = static_cast<int64_t>(status.st_size);
  std::string text;
  int64_t line = 1;
  std::string previous;
  const auto look = [&](std::string_view piece) {
    for (std::string& what : SecretsInLine(piece, previous)) {
      const bool repeats = !found.empty() && found.back().file == path.string() &&
                           found.back().line == line && found.back().what == what;
      if (!repeats) found.push_back({path.string(), line, std::move(what)});
    }
  };
  for (int64_t offset = 0; offset < size;) {
    const auto bytes = static_cast<size_t>(std::min<int64_t>(kPieceBytes, size - offset));
    const size_t old = text.size();
    text.resize(old + bytes);
    engine::ReadAllAt(file, std::as_writable_bytes(std::span(text).subspan(old)), offset, path);
    constexpr size_t kHeadBytes = 8192;
    if (offset == 0 && text.substr(0, kHeadBytes).find('\0') != std::string::npos) return;
    offset += static_cast<int64_t>(bytes);
    size_t begin = 0;
    for (size_t end = text.find('\n'); end != std::string::npos; end = text.find('\n', begin)) {
      look(std::string_view(text).substr(begin, end - begin));
      previous.assign(text, begin, std::min(end - begin, kOverlapBytes));
      begin = end + 1;
      ++line;
    }
    text.erase(0, begin);
    if (text.size() >= kPieceBytes) {
      look(text);
      text.erase(0, text.size() - kOverlapBytes);
    }
  }
  if (!text.empty()) look(text);
}

}  // namespace

std::vector<std::string> SecretsInLine(std::string_view line, std::string_view previous) {
  std::vector<std::string> found;
  for (const TokenRule& rule : kTokens) {
    if (HasToken(line, rule)) found.emplace_back(rule.what);
  }
  if (HasPrivateKey(line)) found.emplace_back("private key");
  if (HasWebToken(line)) found.emplace_back("JSON web token");
  if (HasPasswordInUrl(line)) found.emplace_back("password in a URL");
  // One finding for a line is enough: a token is often assigned to a variable.
  if (found.empty() && (HasAssignedSecret(line) || HasSecretEntry(line, previous))) {
    found.emplace_back("value of a secret variable");
  }
  return found;
}

std::vector<FoundSecret> ScanForSecrets(const fs::path& dir) {
  std::vector<fs::path> files;
  std::error_code error;
  if (fs::is_regular_file(dir, error)) {
    files.push_back(dir);
  } else {
    fs::recursive_directory_iterator at(dir, error);
    for (; !error && at != fs::recursive_directory_iterator(); at.increment(error)) {
      const fs::file_status status = at->symlink_status(error);
      if (error) break;
      if (fs::is_directory(status) && at->path().filename() == ".git")
        at.disable_recursion_pending();
      if (fs::is_regular_file(status)) files.push_back(at->path());
    }
  }
  if (error) engine::ThrowSystemError("scan", dir, error.value());
  std::sort(files.begin(), files.end());
  std::vector<FoundSecret> found;
  for (const fs::path& file : files) {
    const std::string what = SecretFile(file.filename().string());
    if (!what.empty()) found.push_back({file.string(), 0, what});
    ScanFile(file, found);
  }
  return found;
}

}  // namespace tandem::server
