#include "server/pipeline/references.h"

#include "engine/base/error.h"
#include "server/pipeline/spec.h"

namespace tandem::server {
namespace {

constexpr const char* kBegin = "${jobs.";
constexpr size_t kMaxBytes = 1 << 20;
constexpr int kMaxDepth = 16;

Error Invalid(const std::string& message) { return Error(ErrorCode::kInvalidArgument, message); }

Error NotSet(const std::string& name) {
  return Invalid("environment variable " + name + " is not set: set it, or give a default with ${" +
                 name + ":-…}");
}

// Position of the "}" that closes the "${" at `begin`; nested variables are skipped.
size_t EndOfVariable(const std::string& text, size_t begin) {
  int depth = 0;
  for (size_t at = begin; at < text.size(); ++at) {
    if (text.compare(at, 2, "${") == 0) ++depth;
    if (text[at] == '}' && --depth == 0) return at;
  }
  throw Invalid("\"${\" has no \"}\"");
}

// Like the public function; `depth` counts nested defaults.
std::string ReplaceVariables(const std::string& text, const PipelineReading& reading, int depth) {
  if (depth > kMaxDepth) throw Invalid("variables are nested deeper than 16");
  std::string out;
  size_t from = 0;
  while (true) {
    const size_t begin = text.find("${", from);
    if (begin == std::string::npos) break;
    const size_t end = EndOfVariable(text, begin);
    out.append(text, from, begin - from);
    const std::string whole = text.substr(begin, end + 1 - begin);
    const std::string inside = whole.substr(2, whole.size() - 3);
    const size_t split = inside.find(":-");
    const std::string name = inside.substr(0, split);
    from = end + 1;
    if (inside.starts_with("jobs.")) {
      out += whole;
      continue;
    }
    if (!reading.environment) {
      throw Invalid("variable ${" + name +
                    "} is not expanded in a spec from the API: write its value instead");
    }
    const char* value = reading.environment(name.c_str());
    // As in a shell, `${VAR:-default}` treats an empty value as unset.
    if (value != nullptr && (split == std::string::npos || *value != '\0')) {
      out += value;
    } else if (split != std::string::npos) {
      out += ReplaceVariables(inside.substr(split + 2), reading, depth + 1);
    } else {
      throw NotSet(name);
    }
    if (out.size() > kMaxBytes)
      throw Invalid("the text is too long after its variables are expanded");
  }
  return out + text.substr(from);
}

}  // namespace

std::string ReplaceVariables(const std::string& text, const PipelineReading& reading) {
  return ReplaceVariables(text, reading, 0);
}

std::vector<Reference> ReferencesIn(const std::string& text) {
  std::vector<Reference> found;
  for (size_t at = 0; (at = text.find(kBegin, at)) != std::string::npos;) {
    const size_t end = text.find('}', at);
    if (end == std::string::npos) break;  // EndOfVariable has refused the text
    Reference reference;
    reference.begin = at;
    reference.text = text.substr(at, end + 1 - at);
    const std::string inside = text.substr(at + 7, end - at - 7);
    const size_t dot = inside.find('.');
    reference.job = inside.substr(0, dot);
    if (dot != std::string::npos) reference.what = inside.substr(dot + 1);
    found.push_back(std::move(reference));
    at = end + 1;
  }
  return found;
}

std::string ReplaceReferences(const std::string& text, const PipelineOutputs& outputs) {
  std::string out;
  size_t from = 0;
  for (const Reference& reference : ReferencesIn(text)) {
    const auto job = outputs.find(reference.job);
    if (job == outputs.end() || !job->second.contains(reference.what)) {
      throw Error(ErrorCode::kFailedPrecondition,
                  reference.text + ": job " + reference.job + " has not produced this output");
    }
    out.append(text, from, reference.begin - from);
    out += job->second.at(reference.what);
    from = reference.begin + reference.text.size();
  }
  return out + text.substr(from);
}

bool IsReference(const std::string& text) {
  const std::vector<Reference> found = ReferencesIn(text);
  return found.size() == 1 && found[0].text == text;
}

}  // namespace tandem::server
