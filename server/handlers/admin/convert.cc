#include <nlohmann/json.hpp>

#include "server/handlers/admin/convert_spec.h"
#include "server/handlers/endpoints.h"
#include "server/handlers/handlers.h"
#include "server/jobs/job_supervisor.h"
#include "server/wire/field_reader.h"

namespace tandem::server {
namespace {

// POST /admin/convert
void ConvertModel(const HandlerContext& context, Request request, ResponseWriter writer) {
  RequireJson(request);
  const nlohmann::ordered_json body = ParseJsonObject(request.body);
  JobSupervisor& jobs = RequireJobs(context);
  const convert::ConvertSpec spec = ConvertSpecOf(context, body);
  const Job job = jobs.Submit(JobType::kConvert, body.dump(), convert::ConvertSpecJson(spec));
  SendAccepted(job, writer);
}

}  // namespace

std::span<const Endpoint> ConvertEndpoints() {
  static constexpr Endpoint kEndpoints[] = {
      {"POST", "/admin/convert", ConvertModel, Access::kAdminKey},
  };
  return kEndpoints;
}

}  // namespace tandem::server
