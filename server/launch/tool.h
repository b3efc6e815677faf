#pragma once

#include <chrono>
#include <string>
#include <string_view>
#include <vector>

namespace tandem::server {

// A finished run of a site's own tool (sbatch, kubectl, ssh).
struct ToolResult {
  int code = 0;  // exit code; 128 + number for a signal
  std::string out;
  std::string error;

  // The first line of `error`, or of `out`, for a message.
  std::string Reason() const;
};

// For a question to a scheduler, whose thread also watches the jobs.
inline constexpr std::chrono::seconds kQuestionTime{10};
// For a submission. One that succeeds later is found by the job's name.
inline constexpr std::chrono::seconds kSubmissionTime{30};

// Runs `argv` without a shell: argv[0] is looked up in PATH, `input` is its standard input. The
// tool gets no descriptor of ours and an environment without keys and tokens, because schedulers
// store the environment of a job; kubectl, ssh and scp keep the keys of a cloud. Reads at most 1
// MiB of each stream. Kills the tool after `timeout` and throws kUnavailable. Throws kNotFound if
// the tool is not installed, and kIo.
ToolResult RunTool(const std::vector<std::string>& argv, std::string_view input = {},
                   std::chrono::milliseconds timeout = std::chrono::seconds(60));

}  // namespace tandem::server
