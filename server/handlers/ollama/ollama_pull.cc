#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "engine/base/attempt.h"
#include "engine/io/sha256.h"
#include "server/handlers/endpoints.h"
#include "server/handlers/ollama/ollama_model.h"
#include "server/models/model_host.h"
#include "server/models/model_pulls.h"
#include "server/respond/error_response.h"
#include "server/wire/field_reader.h"

namespace tandem::server {
namespace {

using Json = nlohmann::ordered_json;

// The answer of one download: lines of progress, or one object at the end. Thread-safe.
class PullAnswer : public std::enable_shared_from_this<PullAnswer> {
 public:
  PullAnswer(ResponseWriter writer, bool streams, std::string request_id)
      : writer_(std::move(writer)), streams_(streams), request_id_(std::move(request_id)) {}

  // Whether a client waits for the answer.
  bool has_reader() const { return !writer_.disconnected(); }

  void Show(const Json& status) {
    const std::lock_guard lock(mutex_);
    if (!is_done_) SendStatus(status.dump());
  }

  void Succeed() {
    const std::string body = Json{{"status", "success"}}.dump();
    const std::lock_guard lock(mutex_);
    if (std::exchange(is_done_, true)) return;
    if (!streams_) return writer_.Json(200, body);
    SendStatus(body);
    stream_->Close();
  }

  void Fail(const Error& error) {
    ErrorReply reply = MakeErrorReply(error, request_id_);
    const std::lock_guard lock(mutex_);
    if (std::exchange(is_done_, true)) return;
    if (!streams_) return writer_.Send(ToResponse(std::move(reply)));
    SendStatus(InOllamaShape(std::move(reply)).body);
    stream_->Close();
  }

 private:
  // REQUIRES: mutex_ held.
  void SendStatus(std::string_view line) {
    if (!streams_) return;
    if (!stream_) {
      writer_.OnSilence([weak = weak_from_this()] {
        if (const auto self = weak.lock()) self->Show({{"status", "waiting"}});
      });
      stream_ = writer_.StartLineStream();
    }
    stream_->SendLine(line);
  }

  const ResponseWriter writer_;
  const bool streams_;
  const std::string request_id_;
  std::mutex mutex_;  // guards the rest
  std::optional<EventStream> stream_;
  bool is_done_ = false;
};

struct PullPlan {
  std::string name;    // of the model on the hub, and of the served model
  std::string digest;  // the same for all lines of a download: clients group them by it
};

PullPlan PlanPull(const HandlerContext& context, const std::string& asked) {
  PullPlan plan;
  plan.name = ServedNameOf(context, asked);
  engine::Sha256 hash;
  hash.Update(plan.name);
  plan.digest = engine::ToHex(hash.Finish());
  if (IsModelName(plan.name)) return plan;
  throw BadValue("model", "'" + plan.name.substr(0, 120) +
                              "' cannot be the name of a served model, which has " +
                              kModelNameRule +
                              ": download it with 'tandem pull' and load it with POST "
                              "/admin/models/load");
}

Json ProgressLine(const PullPlan& plan, const ModelPulls::Progress& progress) {
  Json line;
  if (progress.bytes_total == 0) return {{"status", "pulling manifest"}};
  line["status"] = "pulling " + plan.digest.substr(0, 12);
  line["digest"] = "sha256:" + plan.digest;
  line["total"] = progress.bytes_total;
  line["completed"] = progress.bytes_done;
  return line;
}

Error LoadError(const Job& job) {
  const std::string why = job.error ? job.error->message : "the load was cancelled";
  return Error(ErrorCode::kFailedPrecondition,
               "the model was downloaded, but cannot be served: " + why)
      .WithReason(job.error ? job.error->code : "cancelled");
}

// Serves the downloaded model. Runs on the thread of the downloads.
void LoadPulled(const HandlerContext& context, const PullPlan& plan, const std::string& path,
                const std::shared_ptr<PullAnswer>& answer) {
  if (context.models.Contains(plan.name)) return answer->Succeed();  // a second pull was faster
  ModelHost* host = context.model_host;
  if (host == nullptr) return answer->Fail(NotReady(context));
  answer->Show({{"status", "loading model"}});
  ModelLoadSpec spec;
  spec.source = path;
  spec.id = plan.name;
  const auto refused = ErrorOf([&] {
    host->Load(spec, Json{{"id", plan.name}, {"pull", plan.name}}.dump(), [answer](const Job& job) {
      if (job.status == JobStatus::kSucceeded) return answer->Succeed();
      answer->Fail(LoadError(job));
    });
  });
  if (refused) answer->Fail(*refused);
}

// POST /api/pull
void OllamaPull(const HandlerContext& context, Request request, ResponseWriter writer) {
  RequireJsonFromPages(request);
  const Json body = ParseJsonObject(request.body);
  FieldReader reader(body);
  const bool streams = reader.Bool("stream").value_or(true);
  if (reader.Bool("insecure").value_or(false)) {
    throw UnsupportedField("insecure",
                           "insecure is not supported: the variable HF_ENDPOINT of the server "
                           "names the hub");
  }
  const PullPlan plan = PlanPull(context, ReadOllamaName(body));
  const auto answer = std::make_shared<PullAnswer>(writer, streams, request.id);
  if (context.models.Contains(plan.name)) return answer->Succeed();
  RequireJobs(context);
  ModelPulls* pulls = context.pulls;
  if (pulls == nullptr) throw NotReady(context);
  ModelPulls::Watcher watcher;
  watcher.on_progress = [plan, answer](const ModelPulls::Progress& progress) {
    answer->Show(ProgressLine(plan, progress));
    return answer->has_reader();
  };
  watcher.on_end = [&context, plan, answer](const std::optional<Error>& error,
                                            const std::string& path) {
    if (error) return answer->Fail(*error);
    LoadPulled(context, plan, path, answer);
  };
  pulls->Start(plan.name, std::move(watcher));
  answer->Show({{"status", "pulling manifest"}});  // begins the stream while the download waits
}

}  // namespace

std::span<const Endpoint> OllamaPullEndpoints() {
  static constexpr Endpoint kEndpoints[] = {
      {.method = "POST",
       .pattern = "/api/pull",
       .handle = OllamaPull,
       .access = Access::kAdminKey,
       .api = ApiKind::kOllama},
  };
  return kEndpoints;
}

}  // namespace tandem::server
