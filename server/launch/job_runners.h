#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "server/jobs/job_runner.h"

namespace tandem::server {

// The runner of the settings jobs-on, jobs-program and jobs-option; null for "local". Throws
// kInvalidArgument for options that `where` does not take.
std::shared_ptr<JobRunner> MakeJobRunner(const std::string& where, const std::string& program,
                                         const std::vector<std::string>& options);

}  // namespace tandem::server
