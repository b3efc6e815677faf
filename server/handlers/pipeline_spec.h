#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace tandem::server {

struct HandlerContext;

struct CheckedPipeline {
  std::string spec_json;  // as the job's process reads it: its paths are absolute
  std::string plan_json;  // {"jobs":[{"name","kind","needs"}]} in the order they will run in
};

// Checks the spec of a job of type pipeline as its process will. Paths become absolute below the
// model root, where `out` of a conversion names a directory; what only makes sense on the command
// line (variables, `dir`, spec files, other servers) is refused. Throws as ResolvePath, and
// kInvalidArgument with the first fault; kAlreadyExists for a model's name that is taken.
CheckedPipeline CheckPipelineSpec(const HandlerContext& context, nlohmann::ordered_json spec);

}  // namespace tandem::server
