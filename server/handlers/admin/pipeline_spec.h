#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace tandem::server {

struct HandlerContext;

struct CheckedPipeline {
  std::string spec_json;  // for the job's process; its paths are absolute
  std::string plan_json;  // {"jobs":[{"name","kind","needs"}]} in execution order
};

// REQUIRES: `spec` is an object. Checks the spec of a pipeline job as its process will. Makes its
// paths absolute, below the model root; `out` of a conversion names a directory there. Refuses what
// only the command line offers: variables, `dir`, spec files, other servers. Throws as ResolvePath,
// kInvalidArgument with the first fault, and kAlreadyExists if a model's name or a conversion's
// target is taken.
CheckedPipeline CheckPipelineSpec(const HandlerContext& context, nlohmann::ordered_json spec);

}  // namespace tandem::server
