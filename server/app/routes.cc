#include "server/app/routes.h"

namespace tandem::server {
namespace {

// Room for a form's bytes besides its file: names, boundaries, fields.
constexpr size_t kFormBytes = 1 << 20;

using HandlerFunction = void (*)(const HandlerContext&, Request, ResponseWriter);

Handler Bind(const HandlerContext& context, HandlerFunction function) {
  return [&context, function](Request request, ResponseWriter writer) {
    function(context, std::move(request), std::move(writer));
  };
}

}  // namespace

std::vector<Route> AllRoutes(const HandlerContext& context) {
  struct Line {
    const char* method;
    const char* pattern;
    HandlerFunction function;
    Access access = Access::kApiKey;
    RunsOn runs_on = RunsOn::kRequestPool;
    bool is_heavy = false;
  };
  // clang-format off
  const Line lines[] = {
      {"GET",  "/",                    Welcome,         Access::kOpen, RunsOn::kIoThread},
      {"GET",  "/health",              Health,          Access::kOpen, RunsOn::kIoThread},
      {"GET",  "/ready",               Ready,           Access::kOpen, RunsOn::kIoThread},
      {"GET",  "/version",             Version,         Access::kOpen, RunsOn::kIoThread},
      {"GET",  "/metrics",             GetMetrics,      Access::kMetricsKey, RunsOn::kIoThread},
      {"GET",  "/openapi.json",        OpenApi,         Access::kOpen},
      {"GET",  "/v1/models",           ListModels},
      {"GET",  "/v1/models/{id+}",     GetModel},
      {"DELETE", "/v1/models/{id+}",   DeleteModel},
      {"POST", "/v1/chat/completions", ChatCompletions, Access::kApiKey, RunsOn::kRequestPool, true},
      {"POST", "/v1/completions",      Completions,     Access::kApiKey, RunsOn::kRequestPool, true},
      {"POST", "/tokenize",            Tokenize},
      {"POST", "/detokenize",          Detokenize},
      {"POST", "/v1/render",           Render},
      {"POST", "/v1/files",              CreateFile},
      {"GET",  "/v1/files",              ListFiles},
      {"GET",  "/v1/files/{id}",         GetFile},
      {"DELETE", "/v1/files/{id}",       DeleteFile},
      {"GET",  "/v1/files/{id}/content", GetFileContent},
      {"POST", "/v1/fine_tuning/jobs",             CreateFineTuningJob, Access::kApiKey, RunsOn::kWorker},
      {"GET",  "/v1/fine_tuning/jobs",             ListFineTuningJobs},
      {"POST", "/v1/fine_tuning/validate",         ValidateFineTuning, Access::kApiKey, RunsOn::kWorker},
      {"GET",  "/v1/fine_tuning/jobs/{id}",        GetFineTuningJob},
      {"POST", "/v1/fine_tuning/jobs/{id}/cancel", CancelFineTuningJob},
      {"POST", "/v1/fine_tuning/jobs/{id}/pause",  PauseFineTuningJob},
      {"POST", "/v1/fine_tuning/jobs/{id}/resume", ResumeFineTuningJob},
      {"GET",  "/v1/fine_tuning/jobs/{id}/events", ListFineTuningEvents},
      {"GET",  "/v1/fine_tuning/jobs/{id}/checkpoints", ListFineTuningCheckpoints},
      {"GET",  "/admin/models",             ListAdminModels, Access::kAdminKey},
      {"POST", "/admin/models/load",        LoadModel,       Access::kAdminKey},
      {"POST", "/admin/models/unload",      UnloadModel,     Access::kAdminKey},
      {"GET",  "/admin/adapters",           ListAdapters,    Access::kAdminKey},
      {"POST", "/admin/adapters/load",      LoadAdapter,     Access::kAdminKey},
      {"POST", "/admin/adapters/unload",    UnloadAdapter,   Access::kAdminKey},
      {"POST", "/v1/load_lora_adapter",     LoadLoraAdapter, Access::kAdminKey},
      {"POST", "/v1/unload_lora_adapter",   UnloadLoraAdapter, Access::kAdminKey},
      {"GET",  "/admin/aliases",            ListAliases,     Access::kAdminKey},
      {"GET",  "/admin/aliases/{name+}",    GetAlias,        Access::kAdminKey},
      {"PUT",  "/admin/aliases/{name+}",    PutAlias,        Access::kAdminKey},
      {"DELETE", "/admin/aliases/{name+}",  DeleteAlias,     Access::kAdminKey},
      {"POST", "/admin/convert",            ConvertModel,    Access::kAdminKey},
      {"POST", "/admin/jobs",               CreateJob,       Access::kAdminKey},
      {"GET",  "/admin/jobs",               ListJobs,        Access::kAdminKey},
      {"GET",  "/admin/jobs/{id}",          GetJob,          Access::kAdminKey},
      {"POST", "/admin/jobs/{id}/cancel",   CancelJob,       Access::kAdminKey},
      {"POST", "/admin/jobs/{id}/pause",    PauseJob,        Access::kAdminKey},
      {"POST", "/admin/jobs/{id}/resume",   ResumeJob,       Access::kAdminKey},
      {"GET",  "/admin/jobs/{id}/log",      GetJobLog,       Access::kAdminKey},
  };
  // clang-format on
  std::vector<Route> routes;
  for (const Line& line : lines) {
    Route route{line.method, line.pattern, Bind(context, line.function),
                line.access, line.runs_on, line.is_heavy};
    if (line.function == CreateFile) {
      route.open_body = [&context](const Request& head, std::function<void()> has_room) {
        return OpenFileBody(context, head, std::move(has_room));
      };
      route.max_body_bytes = static_cast<size_t>(context.max_file_bytes) + kFormBytes;
    }
    routes.push_back(std::move(route));
  }
  return routes;
}

}  // namespace tandem::server
