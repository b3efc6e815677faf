#include "server/pipeline/spec.h"

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdlib>
#include <set>

#include "engine/base/attempt.h"
#include "engine/base/error.h"
#include "engine/base/quoted.h"
#include "engine/io/atomic_write.h"
#include "server/pipeline/kinds.h"
#include "server/pipeline/references.h"

namespace tandem::server {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxSpecBytes = 1 << 20;
constexpr size_t kMaxJobs = 100;
constexpr size_t kMaxNameBytes = 64;
// YAML aliases can expand to more values than the text holds.
constexpr size_t kMaxValues = 10'000;
constexpr int kMaxNesting = 16;
constexpr std::array<const char*, 3> kTopKeys = {"name", "dir", "jobs"};
constexpr const char* kCommandLine = "command line";

// A bad value; the reader collects all of them.
Error BadValue(const std::string& message) { return Error(ErrorCode::kInvalidArgument, message); }

bool IsJobName(const std::string& name) {
  if (name.empty() || name.size() > kMaxNameBytes) return false;
  return std::all_of(name.begin(), name.end(), [](unsigned char c) {
    return (std::isalnum(c) != 0 && c < 0x80) || c == '_' || c == '-';
  });
}

// Reads the YAML text and the overrides, and collects every fault.
class Reader {
 public:
  explicit Reader(const PipelineReading& reading) : reading_(reading) {}

  void ReadYaml(const std::string& text, const std::string& source) {
    source_ = source;
    YAML::Node root;
    if (const auto error = ExceptionOf<YAML::Exception>([&] { root = YAML::Load(text); })) {
      Fault(source + ":" + std::to_string(error->mark.line + 1), error->msg);
      return;
    }
    if (!root.IsMap()) {
      Fault(source, "must be a mapping with the key jobs");
      return;
    }
    std::set<std::string> seen;
    for (const auto& entry : root) {
      const std::string key = Key(entry.first);
      const std::string where = Where(entry.first);
      if (!seen.insert(key).second) {
        Fault(where, key + ": given twice");
      } else if (key == "jobs") {
        ReadJobs(entry.second, where);
      } else {
        SetTop(key, entry.second, where);
      }
    }
  }

  void ReadOverride(const std::string& word) {
    const size_t equals = word.find('=');
    if (equals == std::string::npos || equals == 0) {
      Fault(kCommandLine, Quoted(word) + ": an override is key=value");
      return;
    }
    const std::string key = word.substr(0, equals);
    const std::string text = word.substr(equals + 1);
    YAML::Node value(text);
    if (text.starts_with("[")) {
      if (const auto error = ExceptionOf<YAML::Exception>([&] { value = YAML::Load(text); })) {
        Fault(kCommandLine, key + ": " + error->what());
        return;
      }
    }
    if (!key.starts_with("jobs.")) return SetTop(key, value, kCommandLine);
    const size_t dot = key.find('.', 5);
    const std::string name = key.substr(5, dot - 5);
    const auto job = std::find_if(spec_.jobs.begin(), spec_.jobs.end(),
                                  [&](const PipelineJob& one) { return one.name == name; });
    if (job == spec_.jobs.end()) {
      Fault(kCommandLine, key + ": the pipeline has no job " + Quoted(name) + Nearest(name));
    } else if (dot == std::string::npos) {
      Fault(kCommandLine, key + ": name a key of the job: " + key + ".KEY=VALUE");
    } else {
      Set(*job, key.substr(dot + 1), value, kCommandLine);
    }
  }

  PipelineSpec Finish() {
    if (spec_.jobs.empty() && faults_.empty()) Fault(source_, "jobs: must have at least one job");
    for (PipelineJob& job : spec_.jobs) CheckJob(job);
    if (faults_.empty()) Sort();
    if (faults_.empty()) return std::move(spec_);
    std::string message = "the pipeline cannot run:";
    for (const std::string& fault : faults_) message += "\n  " + fault;
    throw Error(ErrorCode::kInvalidArgument, message);
  }

  PipelineSpec& spec() { return spec_; }

 private:
  static std::string Key(const YAML::Node& node) { return node.IsScalar() ? node.Scalar() : ""; }
  std::string Where(const YAML::Node& node) const {
    const int line = node.Mark().line;
    return line < 0 ? source_ : source_ + ":" + std::to_string(line + 1);
  }
  void Fault(const std::string& where, const std::string& what) {
    faults_.push_back(where + ": " + what);
  }

  std::string Nearest(const std::string& name) const {
    std::vector<const char*> known;
    for (const PipelineJob& job : spec_.jobs) known.push_back(job.name.c_str());
    return known.empty() ? "" : "; did you mean " + NearestName(name, known) + "?";
  }

  void SetTop(const std::string& key, const YAML::Node& value, const std::string& where) {
    if (key != "name" && key != "dir") {
      Fault(where, Quoted(key) + ": unknown key; did you mean " + NearestName(key, kTopKeys) + "?");
      return;
    }
    if (value.IsNull()) return;
    if (!value.IsScalar()) {
      Fault(where, key + ": must be a single value");
      return;
    }
    const auto bad = ErrorOf([&] {
      const std::string text = ReplaceVariables(value.Scalar(), reading_);
      if (key == "dir") {
        spec_.dir = text;
      } else if (!IsJobName(text)) {
        throw BadValue("must be 1 to 64 characters of [A-Za-z0-9_-], got " + Quoted(text));
      } else {
        spec_.name = text;
      }
    });
    if (bad) Fault(where, key + ": " + bad->what());
  }

  void ReadJobs(const YAML::Node& jobs, const std::string& where) {
    if (!jobs.IsMap()) {
      Fault(where, "jobs: must be a mapping of names to jobs");
      return;
    }
    for (const auto& entry : jobs) {
      const std::string at = Where(entry.first);
      PipelineJob job;
      job.name = Key(entry.first);
      job.origin = at;
      if (!IsJobName(job.name)) {
        Fault(at, "jobs: a name is 1 to 64 characters of [A-Za-z0-9_-], got " + Quoted(job.name));
      } else if (spec_.Find(job.name) != nullptr) {
        Fault(at, "jobs." + job.name + ": two jobs have this name");
      } else if (!entry.second.IsMap()) {
        Fault(at, "jobs." + job.name + ": must be a mapping of keys to values");
      } else if (spec_.jobs.size() == kMaxJobs) {
        Fault(at, "jobs: must have at most " + std::to_string(kMaxJobs) + " jobs");
        return;
      } else {
        seen_.clear();
        Walk(job, entry.second, "", 0);
        spec_.jobs.push_back(std::move(job));
      }
    }
  }

  void Walk(PipelineJob& job, const YAML::Node& node, const std::string& prefix, int depth) {
    for (const auto& entry : node) {
      const std::string key = prefix + Key(entry.first);
      const std::string where = Where(entry.first);
      if (depth > kMaxNesting || ++n_values_ > kMaxValues) {
        Fault(where, "jobs." + job.name + ": has too many or too deeply nested keys");
        return;
      }
      if (entry.second.IsMap()) {
        Walk(job, entry.second, key + ".", depth + 1);
      } else if (!seen_.insert(key).second) {
        Fault(where, "jobs." + job.name + "." + key + ": given twice");
      } else {
        Set(job, key, entry.second, where);
      }
    }
  }

  void Set(PipelineJob& job, const std::string& key, const YAML::Node& node,
           const std::string& where) {
    if (node.IsNull()) return;  // "key:" leaves the default
    PipelineValue value;
    value.origin = where;
    value.is_list = node.IsSequence();
    const auto bad = ErrorOf([&] {
      if (value.is_list) {
        for (const YAML::Node& item : node) {
          if (!item.IsScalar()) throw BadValue("must be a list of single values");
          if (++n_values_ > kMaxValues) throw BadValue("too many values");
          value.words.push_back(ReplaceVariables(item.Scalar(), reading_));
        }
      } else {
        value.words.push_back(ReplaceVariables(node.Scalar(), reading_));
      }
    });
    if (bad) return Fault(where, "jobs." + job.name + "." + key + ": " + bad->what());
    if (key == "kind") {
      job.kind = value.is_list ? "" : value.words[0];
    } else if (key == "needs") {
      job.needs = std::move(value.words);
      needs_at_[job.name] = where;
    } else {
      std::erase_if(job.keys, [&](const auto& one) { return one.first == key; });
      job.keys.emplace_back(key, std::move(value));
    }
  }

  void CheckJob(PipelineJob& job) {
    const std::string name = "jobs." + job.name;
    const PipelineKind* kind = FindPipelineKind(job.kind);
    if (kind == nullptr) {
      Fault(job.origin, name + ".kind: " + "must be one of " + PipelineKindNames() +
                            (job.kind.empty() ? "" : ", got " + Quoted(job.kind)));
      return;
    }
    CheckNeeds(job);
    for (const auto& [key, value] : job.keys) CheckKey(job, *kind, key, value);
    CheckOut(job);
    for (const char* key : kind->required) {
      if (job.Text(key).empty()) Fault(job.origin, name + "." + key + ": must be given");
    }
  }

  void CheckKey(PipelineJob& job, const PipelineKind& kind, const std::string& key,
                const PipelineValue& value) {
    const std::string where = "jobs." + job.name + "." + key;
    const bool is_known = std::find(kind.keys.begin(), kind.keys.end(), key) != kind.keys.end();
    if (!is_known && !kind.takes_training_keys) {
      std::vector<const char*> known(kind.keys.begin(), kind.keys.end());
      known.insert(known.end(), {"kind", "needs"});
      Fault(value.origin, where + ": unknown key of a " + job.kind + "; did you mean " +
                              NearestName(key, known) + "?");
    } else if (is_known && value.is_list) {
      Fault(value.origin, where + ": must be a single value, not a list");
    }
    for (const std::string& word : value.words) CheckReferences(job, key, value, word);
  }

  // `out` must be known before any job runs, so it cannot hold a reference.
  void CheckOut(const PipelineJob& job) {
    const PipelineValue* out = job.Find("out");
    if (out == nullptr || job.Text("out").empty()) return;
    const std::string name = "jobs." + job.name + ".out: ";
    if (!ReferencesIn(job.Text("out")).empty()) {
      Fault(out->origin, name + "must not contain an output of another job");
    }
    for (const PipelineJob& other : spec_.jobs) {
      if (&other == &job) break;
      if (other.Text("out") == job.Text("out")) {
        Fault(out->origin,
              name + "is also the out of jobs." + other.name + "; set a different directory");
      }
    }
  }

  void CheckNeeds(PipelineJob& job) {
    std::vector<std::string> needs;
    for (const std::string& need : job.needs) {
      if (spec_.Find(need) == nullptr) {
        Fault(needs_at_[job.name], "jobs." + job.name + ".needs: the pipeline has no job " +
                                       Quoted(need) + Nearest(need));
      } else if (std::find(needs.begin(), needs.end(), need) != needs.end()) {
        Fault(needs_at_[job.name], "jobs." + job.name + ".needs: " + need + " is named twice");
      } else {
        needs.push_back(need);
      }
    }
    job.needs = std::move(needs);
  }

  // A job that uses another job's output needs that job.
  void CheckReferences(PipelineJob& job, const std::string& key, const PipelineValue& value,
                       const std::string& word) {
    const std::string where = "jobs." + job.name + "." + key + ": ";
    for (const Reference& reference : ReferencesIn(word)) {
      const PipelineJob* other = spec_.Find(reference.job);
      if (other == nullptr) {
        Fault(value.origin, where + reference.text + ": the pipeline has no job " +
                                Quoted(reference.job) + Nearest(reference.job));
        continue;
      }
      const PipelineKind* kind = FindPipelineKind(other->kind);
      if (kind == nullptr) continue;  // CheckJob reports it
      const auto makes = [&](const char* what) { return reference.what == what; };
      if (std::none_of(kind->outputs.begin(), kind->outputs.end(), makes)) {
        Fault(value.origin, where + reference.text + ": a " + other->kind + " has no " +
                                Quoted(reference.what) + "; did you mean ${jobs." + other->name +
                                "." + NearestName(reference.what, kind->outputs) + "}?");
      } else if (std::find(job.needs.begin(), job.needs.end(), other->name) == job.needs.end()) {
        job.needs.push_back(other->name);
      }
    }
  }

  // Topological order. Ties keep the order of the file.
  void Sort() {
    std::vector<PipelineJob> left = std::move(spec_.jobs);
    spec_.jobs.clear();
    while (!left.empty()) {
      const auto next = std::find_if(left.begin(), left.end(), [&](const PipelineJob& job) {
        return std::all_of(job.needs.begin(), job.needs.end(),
                           [&](const std::string& need) { return spec_.Find(need) != nullptr; });
      });
      if (next == left.end()) break;
      spec_.jobs.push_back(std::move(*next));
      left.erase(next);
    }
    if (!left.empty()) Fault(left.front().origin, Circle(left));
  }

  static std::string Circle(const std::vector<PipelineJob>& left) {
    const auto find = [&](const std::string& name) {
      return std::find_if(left.begin(), left.end(),
                          [&](const PipelineJob& job) { return job.name == name; });
    };
    // Every remaining job has a remaining need, so following the needs leads into a cycle.
    std::vector<std::string> way;
    std::string name = left.front().name;
    while (std::find(way.begin(), way.end(), name) == way.end()) {
      way.push_back(name);
      for (const std::string& need : find(name)->needs) {
        if (find(need) == left.end()) continue;
        name = need;
        break;
      }
    }
    way.erase(way.begin(), std::find(way.begin(), way.end(), name));
    std::string text = "jobs need each other in a circle: ";
    for (const std::string& one : way) text += one + " needs ";
    return text + name;
  }

  const PipelineReading& reading_;
  PipelineSpec spec_;
  std::string source_;
  std::set<std::string> seen_;  // keys of the job being read
  std::map<std::string, std::string> needs_at_;
  size_t n_values_ = 0;
  std::vector<std::string> faults_;
};

}  // namespace

const PipelineValue* PipelineJob::Find(const std::string& key) const {
  for (const auto& [known, value] : keys) {
    if (known == key) return &value;
  }
  return nullptr;
}

std::string PipelineJob::Text(const std::string& key, const std::string& fallback) const {
  const PipelineValue* value = Find(key);
  return value == nullptr || value->is_list ? fallback : value->words[0];
}

const PipelineJob* PipelineSpec::Find(const std::string& job_name) const {
  for (const PipelineJob& job : jobs) {
    if (job.name == job_name) return &job;
  }
  return nullptr;
}

PipelineReading FromThisEnvironment() {
  return {[](const char* name) { return std::getenv(name); }};
}

PipelineSpec ParsePipelineSpec(const std::string& text, const std::string& source,
                               std::span<const std::string> overrides,
                               const PipelineReading& reading) {
  Reader reader(reading);
  reader.ReadYaml(text, source);
  for (const std::string& word : overrides) reader.ReadOverride(word);
  reader.spec().source = source;
  return reader.Finish();
}

PipelineSpec LoadPipelineSpec(const fs::path& path, std::span<const std::string> overrides,
                              const PipelineReading& reading) {
  PipelineSpec spec = ParsePipelineSpec(engine::ReadWholeFile(path, kMaxSpecBytes), path.string(),
                                        overrides, reading);
  spec.spec_dir = fs::absolute(path).parent_path();
  if (spec.name.empty()) spec.name = path.stem().string();
  return spec;
}

}  // namespace tandem::server
