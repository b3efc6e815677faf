#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace tandem::server {

// One training run to start elsewhere: `tandem train SPEC KEY=VALUE…` on `ranks` processes.
struct LaunchPlan {
  std::string name = "tandem-train";   // of the job: a DNS label of at most 40 characters
  std::string program = "tandem";      // on the machines
  std::string spec;                    // path on the machines
  std::vector<std::string> overrides;  // key=value words
  int64_t nodes = 1;                   // machines
  int64_t ranks_per_node = 1;          // processes of a machine
  std::string token_file;              // on the machines; empty: no token of the hub
  std::filesystem::path dir = ".";     // logs, on the machines

  int64_t ranks() const { return nodes * ranks_per_node; }
  std::vector<std::string> TrainWords() const;  // program, "train", spec, overrides
};

// Throws kInvalidArgument for a name, a number or a word that a launcher cannot carry: a control
// character, or a secret in a word (deploy/secret_scan.h). Tokens come from files and secrets only.
void CheckLaunchPlan(const LaunchPlan& plan);

// mpirun with one process per rank, or the plain program for one rank. With hosts, mpirun reaches
// them by ssh without questions, and writes the output of each rank below plan.dir/ranks.
std::vector<std::string> MpirunWords(const LaunchPlan& plan, const std::vector<std::string>& hosts);

// The same on this machine, for a shell: the hub's token file also reaches one rank.
std::vector<std::string> LocalWords(const LaunchPlan& plan);

// A batch script for sbatch. srun starts the ranks over PMIx; exit code 75 and the death of a rank
// queue the job again unless it was cancelled, and the run resumes. `options` are further options
// of sbatch.
std::string SbatchScript(const LaunchPlan& plan, const std::vector<std::string>& options);

// The hosts of a file, one per line with optional `slots=N` and `#` comments, or of a list a,b,c.
// Throws kInvalidArgument for a name that ssh could read as an option.
std::vector<std::string> ParseHosts(std::string_view text);

// How a machine runs the program.
struct HostProbe {
  std::string version;
  std::string sha256;   // of the program's file
  std::string kernels;  // those it chooses, with their features: "avx2", "avx512+bf16+vnni"
};
std::string HostProbeJson(const HostProbe& probe);
// Runs `ssh HOST PROGRAM launch probe` on every host and compares: throws kFailedPrecondition that
// names each host whose program or kernels differ from `own`, because its sums would round
// otherwise, and each host that does not answer.
void CheckHosts(const std::vector<std::string>& hosts, const std::string& program,
                const HostProbe& own);
// Copies files with absolute paths to the same paths on every host, by scp and a rename.
void CopyToHosts(const std::vector<std::string>& hosts, const std::vector<std::string>& files);

}  // namespace tandem::server
