#include "bench/load/load_generator.h"

#include <algorithm>
#include <cstdio>
#include <list>
#include <nlohmann/json.hpp>
#include <optional>
#include <ostream>
#include <vector>

#include "bench/client/http_target.h"
#include "bench/load/load_run.h"
#include "bench/load/load_summary.h"
#include "bench/load/probe.h"
#include "bench/measure/paired.h"
#include "bench/measure/process_usage.h"
#include "engine/base/error.h"
#include "engine/io/atomic_write.h"

namespace tandem::bench {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kAskTimeoutS = 120;
// Two lengths of text determine the linear relation between words and tokens.
constexpr int64_t kShortWords = 16;
constexpr int64_t kLongWords = 144;
// Below any real tokenizer's rate; a lower slope means that the template drops the text.
constexpr double kMinTokensPerWord = 0.5;
// Warm-up prompts come from indices far beyond the measured ones.
constexpr int64_t kWarmupIdx = int64_t{1} << 40;

HttpAnswer AskForOk(const HttpTarget& target, const std::string& method, const std::string& path,
                    const std::string& body) {
  HttpAnswer answer = Ask(target, method, path, body, kAskTimeoutS);
  if (answer.status != 200) {
    throw Error(ErrorCode::kFailedPrecondition, target.url() + path + " answered " +
                                                    std::to_string(answer.status) + ": " +
                                                    answer.body.substr(0, 300));
  }
  return answer;
}

std::string FirstModel(const HttpTarget& target) {
  const Json list = Json::parse(AskForOk(target, "GET", "/v1/models", "").body, nullptr, false);
  const Json::json_pointer path("/data/0/id");
  if (!list.is_object() || !list.contains(path) || !list[path].is_string()) {
    throw Error(ErrorCode::kFailedPrecondition,
                target.url() + "/v1/models lists no model; name one with --model");
  }
  return list[path].get<std::string>();
}

// One of the two servers, ready for measuring.
class Side {
 public:
  Side(const char* name, const LoadOptions& options, const LoadOptions::Side& side)
      : name_(name),
        options_(options),
        pid_(side.pid),
        target_(ParseTarget(side.url, side.api_key)),
        prompts_(options.prompts),
        path_(prompts_.endpoint == PromptOptions::Endpoint::kChat ? "/v1/chat/completions"
                                                                  : "/v1/completions") {
    prompts_.model = side.model.empty() ? FirstModel(target_) : side.model;
    if (prompts_.kind == PromptOptions::Kind::kText) Calibrate();
    if (pid_ != 0) ReadProcessUsage(pid_);  // fails early if the process is unreadable
  }

  const char* name() const { return name_; }
  const std::string& model() const { return prompts_.model; }
  std::string url() const { return target_.url(); }
  // Describes for the report how text prompts are made.
  std::string DescribeText() const {
    if (!is_calibrated_) {
      return "; the server's prompt_tokens do not grow with the text, so each word counts as one "
             "token";
    }
    char line[96];
    std::snprintf(line, sizeof line, "; %.2f tokens per word, %.0f around a prompt",
                  text_length_.tokens_per_word, text_length_.tokens_around);
    return line;
  }

  LoadSummary Run(int round) const {
    PromptOptions prompt_options = prompts_;
    prompt_options.seed += static_cast<uint64_t>(round);  // both sides of a pair get the same bytes
    if (options_.warmup > 0) {
      prompt_options.abort_fraction = 0;
      const PromptMaker maker(prompt_options, text_length_);
      const LoadRun run =
          RunLoad(target_, maker,
                  {.path = path_,
                   .streams = std::min(std::max<int64_t>(options_.streams, 1), options_.warmup),
                   .requests = options_.warmup,
                   .arrivals = {},
                   .first_request_idx = kWarmupIdx,
                   .request_timeout_s = options_.request_timeout_s,
                   .keep_alive = options_.keep_alive});
      for (const RequestRecord& record : run.records) {
        if (record.outcome == RequestRecord::Outcome::kFailed) {
          throw Error(
              ErrorCode::kFailedPrecondition,
              target_.url() + ": a warm-up request failed: " + record.fault + " " + record.detail);
        }
      }
      prompt_options.abort_fraction = options_.prompts.abort_fraction;
    }

    LoadRunOptions run_options{.path = path_,
                               .arrivals = {},
                               .request_timeout_s = options_.request_timeout_s,
                               .keep_alive = options_.keep_alive};
    if (options_.rate > 0) {
      run_options.arrivals = ArrivalTimes({.process = options_.arrival,
                                           .requests_per_s = options_.rate,
                                           .requests = options_.requests,
                                           .duration_s = options_.duration_s,
                                           .seed = prompt_options.seed});
    } else {
      run_options.streams = options_.streams;
      run_options.requests = options_.requests;
      run_options.duration_s = options_.duration_s;
    }
    const PromptMaker maker(prompt_options, text_length_);
    std::optional<ProcessUsage> before;
    if (pid_ != 0) before = ReadProcessUsage(pid_);
    const double cpu_before = OwnCpuSeconds();
    std::list<Probe> probes;  // a probe cannot be moved
    for (const std::string& path : options_.probes) {
      probes.emplace_back(target_,
                          ProbeOptions{.path = path, .interval_s = options_.probe_interval_s});
    }
    const LoadRun run = RunLoad(target_, maker, run_options);
    const double cpu_s = OwnCpuSeconds() - cpu_before;
    LoadSummary summary = Summarize(run);
    for (Probe& probe : probes) summary.probes.push_back(probe.Stop());
    summary.generator_cpu_s = cpu_s;
    if (before) AddServerUsage(summary, *before, ReadProcessUsage(pid_));
    return summary;
  }

 private:
  void Calibrate() {
    const auto count = [&](int64_t words) {
      const PromptMaker maker(prompts_, {});
      const HttpAnswer answer = AskForOk(target_, "POST", path_, maker.CalibrationBody(words));
      const CompletionPiece piece = CompletionParser().Parse(answer.body);
      if (!piece.usage || piece.usage->prompt_tokens <= 0) {
        throw Error(ErrorCode::kFailedPrecondition,
                    target_.url() +
                        " reports no usage.prompt_tokens, which text prompts need to reach a given "
                        "length; use --prompt-kind ids");
      }
      return static_cast<double>(piece.usage->prompt_tokens);
    };
    const double few = count(kShortWords), many = count(kLongWords);
    const double slope = (many - few) / static_cast<double>(kLongWords - kShortWords);
    if (slope < kMinTokensPerWord) return;  // the server does not count the text that we send
    is_calibrated_ = true;
    text_length_.tokens_per_word = slope;
    text_length_.tokens_around = std::max(few - slope * static_cast<double>(kShortWords), 0.0);
  }

  const char* name_;
  const LoadOptions& options_;
  int pid_;
  HttpTarget target_;
  PromptOptions prompts_;
  std::string path_;
  TextLength text_length_;
  bool is_calibrated_ = false;
};

// One figure of both sides: medians, and the ratio of each pair.
struct Figure {
  const char* name;
  const char* unit;
  double (*of)(const LoadSummary&);
};
constexpr Figure kFigures[] = {
    {"output_tokens_per_s", "tokens/s", [](const LoadSummary& s) { return s.output_tokens_per_s; }},
    {"first_token_p50", "ms", [](const LoadSummary& s) { return s.first_token_ms.p50; }},
    {"first_token_p99", "ms", [](const LoadSummary& s) { return s.first_token_ms.p99; }},
    {"gap_p99", "ms", [](const LoadSummary& s) { return s.gap_ms.p99; }},
    {"answer_p50", "ms", [](const LoadSummary& s) { return s.answer_ms.p50; }},
};

double Ratio(double a, double b) { return b > 0 ? a / b : 0; }

std::string Describe(const LoadOptions& options) {
  char line[256];
  const bool chat = options.prompts.endpoint == PromptOptions::Endpoint::kChat;
  const char* what = chat ? "chat completions" : "completions";
  const char* how = options.prompts.stream ? "streamed" : "plain";
  if (options.rate > 0) {
    const bool poisson = options.arrival == ArrivalOptions::Process::kPoisson;
    std::snprintf(line, sizeof line, "open loop, %.3g requests/s (%s), %s %s", options.rate,
                  poisson ? "Poisson" : "constant", how, what);
  } else {
    std::snprintf(line, sizeof line, "closed loop, %lld streams, %s %s",
                  static_cast<long long>(options.streams), how, what);
  }
  return line;
}

Json ProtocolJson(const LoadOptions& options) {
  const PromptOptions& p = options.prompts;
  return {
      {"loop", options.rate > 0 ? "open" : "closed"},
      {"streams", options.streams},
      {"rate", options.rate},
      {"arrival", options.arrival == ArrivalOptions::Process::kPoisson ? "poisson" : "constant"},
      {"requests", options.requests},
      {"duration_s", options.duration_s},
      {"warmup", options.warmup},
      {"endpoint", p.endpoint == PromptOptions::Endpoint::kChat ? "chat" : "completions"},
      {"prompt_kind", p.kind == PromptOptions::Kind::kIds ? "ids" : "text"},
      {"prompt_tokens", {p.prompt_tokens.low, p.prompt_tokens.high}},
      {"output_tokens", {p.output_tokens.low, p.output_tokens.high}},
      {"shared_prefix_tokens", p.shared_prefix_tokens},
      {"distinct_prompts", p.distinct_prompts},
      {"stream", p.stream},
      {"ignore_eos", p.ignore_eos},
      {"temperature", p.temperature},
      {"abort_fraction", p.abort_fraction},
      {"seed", p.seed},
      {"keep_alive", options.keep_alive},
      {"probes", options.probes},
      {"probe_interval_s", options.probe_interval_s}};
}

}  // namespace

int RunLoadBench(std::ostream& out, const LoadOptions& given) {
  LoadOptions options = given;
  if (options.requests == 0 && options.duration_s == 0) {
    if (options.rate > 0) {
      throw Error(ErrorCode::kInvalidArgument, "--rate needs --requests or --duration");
    }
    options.requests = 4 * options.streams;
  }
  std::vector<Side> sides;
  sides.emplace_back("A", options, options.server);
  if (!options.peer.url.empty()) sides.emplace_back("B", options, options.peer);
  const bool has_peer = sides.size() > 1;
  const int rounds = has_peer ? options.pairs : 1;

  out << Describe(options) << "\n";
  for (const Side& side : sides) {
    out << side.name() << ": " << side.url() << ", model " << side.model();
    if (options.prompts.kind == PromptOptions::Kind::kText) out << side.DescribeText();
    out << "\n";
  }

  Json runs = Json::array();
  std::vector<LoadSummary> results[2];
  int64_t failed = 0;
  for (int round = 0; round < rounds; ++round) {
    for (size_t i = 0; i < sides.size(); ++i) {
      const LoadSummary summary = sides[i].Run(round);
      failed += summary.failed;
      for (const ProbeSummary& probe : summary.probes) failed += probe.failed;
      if (has_peer) out << "\npair " << round + 1 << ", " << sides[i].name() << "\n";
      out << Describe(summary) << std::flush;
      Json run = Json::parse(ToJson(summary));
      run["side"] = sides[i].name();
      run["pair"] = round + 1;
      runs.push_back(std::move(run));
      results[i].push_back(summary);
    }
  }

  Json report{{"protocol", ProtocolJson(options)}, {"sides", Json::object()}};
  for (const Side& side : sides) {
    report["sides"][side.name()] = {{"url", side.url()}, {"model", side.model()}};
  }
  report["runs"] = std::move(runs);
  if (has_peer) {
    out << "\nmedians of " << rounds << " pairs, and A / B\n";
    for (const Figure& figure : kFigures) {
      std::vector<double> a, b, ratios;
      for (int i = 0; i < rounds; ++i) {
        a.push_back(figure.of(results[0][static_cast<size_t>(i)]));
        b.push_back(figure.of(results[1][static_cast<size_t>(i)]));
        ratios.push_back(Ratio(a.back(), b.back()));
      }
      const double ratio = Ratio(Median(a), Median(b));
      char line[256];
      std::snprintf(line, sizeof line, "%-20s A %.2f  B %.2f %s  A/B %.3f  pairs", figure.name,
                    Median(a), Median(b), figure.unit, ratio);
      out << line;
      for (const double each : ratios) {
        std::snprintf(line, sizeof line, " %.3f", each);
        out << line;
      }
      out << "\n";
      report["ratios"][figure.name] = {
          {"a", Median(a)}, {"b", Median(b)}, {"ratio", ratio}, {"pairs", ratios}};
    }
  }
  if (!options.json_file.empty()) {
    engine::WriteFileAtomically(options.json_file, report.dump(2) + "\n");
  }
  return failed == 0 ? 0 : 1;
}

}  // namespace tandem::bench
