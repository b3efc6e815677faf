#pragma once

#include <stdlib.h>

#include <filesystem>
#include <string>

#include "tests/server/jobs/job_supervisor_fixture.h"

namespace tandem::server {

// sbatch, squeue and scancel as scripts, and the folder with their state: ID/pid of a running job,
// ID/name, and `calls` with the arguments of every call. While the file `hold` exists, submitted
// jobs wait. While `down` exists, every tool fails as if the controller were away. While `linger`
// exists, squeue lists ended jobs in the state that this file names.
class FakeSlurm {
 public:
  explicit FakeSlurm(const std::filesystem::path& dir) : dir_(dir) {
    std::filesystem::create_directories(dir_ / "bin");
    std::filesystem::create_directories(dir_ / "jobs");
    const std::string base = "base='" + dir_.string() + "'";
    const std::string down =
        R"(if [ -e "$base/down" ]; then echo 'slurm_load_jobs error: Unable to contact slurm controller' >&2; exit 1; fi)";
    const std::string log = R"(echo "$(basename "$0") $*" >> "$base/calls")";
    WriteScript(
        dir_ / "bin" / "sbatch",
        {base, log, down,
         "if [ -e \"$base/refuse\" ]; then echo 'sbatch: error: invalid partition' >&2; exit 1; fi",
         "id=$(( $(ls \"$base/jobs\" | wc -l) + 1 ))", "mkdir \"$base/jobs/$id\"", "for word; do",
         "  case $word in --job-name=*) echo \"${word#--job-name=}\" > "
         "\"$base/jobs/$id/name\";; esac",
         "  script=$word", "done", "( while [ -e \"$base/hold\" ]; do sleep 0.01; done",
         "  [ -e \"$base/jobs/$id/cancelled\" ] && exit",
         "  sh \"$script\" < /dev/null & echo $! > \"$base/jobs/$id/pid\"; wait",
         "  if [ -e \"$base/linger\" ]; then : > \"$base/jobs/$id/ending\"; fi",
         "  rm -f \"$base/jobs/$id/pid\"", "  while [ -e \"$base/linger\" ]; do sleep 0.01; done",
         "  : > \"$base/jobs/$id/ended\" ) > /dev/null 2>&1 &", "echo \"$id;cluster\""});
    WriteScript(
        dir_ / "bin" / "squeue",
        {base, log, down, "for word; do", "  case $word in --name=*) names=${word#--name=};; esac",
         "done", "for job in \"$base\"/jobs/*; do",
         "  if [ -e \"$job/ended\" ] || [ ! -e \"$job/name\" ]; then continue; fi",
         "  name=$(cat \"$job/name\")",
         "  case \",$names,\" in *\",$name,\"*) ;; *) continue;; esac",
         "  if [ -e \"$job/ending\" ]; then state=$(cat \"$base/linger\")",
         "  elif [ -e \"$job/pid\" ]; then state=RUNNING; else state=PENDING; fi",
         "  [ -z \"$state\" ] || echo \"$(basename \"$job\") $state $name\"", "done", "exit 0"});
    WriteScript(dir_ / "bin" / "scancel",
                {base, log, down, "for id; do :; done", "job=\"$base/jobs/$id\"", "case \"$*\" in",
                 "  *--state=PENDING*) [ -e \"$job/pid\" ] || { : > \"$job/cancelled\"; : > "
                 "\"$job/ended\"; };;",
                 "  *--signal=TERM*) [ ! -e \"$job/pid\" ] || kill -TERM \"$(cat \"$job/pid\")\";;",
                 "  *) : > \"$job/cancelled\"; [ ! -e \"$job/pid\" ] || kill -KILL \"$(cat "
                 "\"$job/pid\")\"; [ -e \"$base/linger\" ] || : > \"$job/ended\";;",
                 "esac", "exit 0"});
    const char* path = ::getenv("PATH");
    old_path_ = path == nullptr ? "" : path;
    ::setenv("PATH", ((dir_ / "bin").string() + ":" + old_path_).c_str(), 1);
  }
  ~FakeSlurm() { ::setenv("PATH", old_path_.c_str(), 1); }
  FakeSlurm(const FakeSlurm&) = delete;
  FakeSlurm& operator=(const FakeSlurm&) = delete;

  void Set(const char* name, const std::string& text = "") { WriteFile(dir_ / name, text); }
  void Clear(const char* name) { std::filesystem::remove(dir_ / name); }
  std::string calls() const { return FileText(dir_ / "calls"); }
  // Jobs that have not ended.
  int n_left() const {
    int n = 0;
    for (const auto& job : std::filesystem::directory_iterator(dir_ / "jobs")) {
      n += std::filesystem::exists(job.path() / "ended") ? 0 : 1;
    }
    return n;
  }

 private:
  const std::filesystem::path dir_;
  std::string old_path_;
};

}  // namespace tandem::server
