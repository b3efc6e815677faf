#include "training/run/run_metrics.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "engine/base/durable_dirs.h"
#include "engine/base/unix_time.h"
#include "engine/io/posix_file.h"
#include "training/observe/history.h"
#include "training/observe/roof.h"
#include "training/spec/spec_keys.h"

namespace tandem::training {
namespace {

// The spec's keys with a value that may be shown.
WandbDescription DescribeForWandb(const TrainSpec& spec) {
  WandbDescription run{spec.metrics.wandb_project,
                       spec.metrics.wandb_name.empty() ? spec.run_name : spec.metrics.wandb_name,
                       {}};
  for (const SpecKey& key : SpecKeys()) {
    if (!key.value.show) continue;
    run.config.emplace_back(key.names.front(), nlohmann::ordered_json(key.value.show(spec)).dump());
  }
  return run;
}

std::string RewardsIn(const PreferenceFigures& figures) {
  char text[120];
  std::snprintf(text, sizeof text, ", rewards/accuracies: %.3f, rewards/margins: %.4f",
                figures.accuracy, figures.margin);
  return text;
}

// Perplexity belongs to the cross-entropy in a loss.
template <class Result>
double CrossEntropyOf(const Result& result) {
  return result.distill ? result.distill->hard : result.loss;
}

std::string LossesIn(const DistillFigures& figures) {
  char text[120];
  std::snprintf(text, sizeof text, ", soft_loss: %.4f, hard_loss: %.4f", figures.soft,
                figures.hard);
  return text;
}

std::string RoutersIn(const RouterFigures& figures) {
  char text[120];
  std::snprintf(text, sizeof text, ", moe_lb_loss: %.4f, most_loaded_expert: %.4f", figures.balance,
                figures.most_loaded);
  return text;
}

}  // namespace

double TokensPerStep(const TrainSpec& spec) {
  return static_cast<double>(spec.rows_per_batch() * spec.tokens_per_row() *
                             spec.batches_per_step());
}

double RecomputedTflop(const RunParts& parts) {
  return static_cast<double>(parts.trainer.program().recompute_flops()) / 1e12 *
         static_cast<double>(parts.spec.batches_per_step());
}

double StepTflop(const RunParts& parts) {
  return static_cast<double>(parts.trainer.program().training_flops()) / 1e12 *
         static_cast<double>(parts.spec.batches_per_step());
}

RunMetrics::RunMetrics(RunParts& parts, const std::filesystem::path& dir, int64_t first_step)
    : parts_(parts),
      dir_(dir),
      tflop_per_step_(StepTflop(parts)),
      recomputed_tflop_(RecomputedTflop(parts)),
      tokens_per_step_(TokensPerStep(parts.spec)),
      roof_tflops_(RoofFlops(parts.ops, parts.spec.compute, dir / "roof.json") / 1e12) {
  const std::filesystem::path lines = dir / "metrics.jsonl";
  const MetricsHistory history = ReadHistory(lines, first_step);
  started_unix_ = history.started_unix > 0 ? history.started_unix : UnixNowExact();
  productive_seconds_ = history.productive_seconds;
  const MetricsSection& wanted = parts.spec.metrics;
  if (wanted.plot) sinks_.push_back(MakeLossPlot(dir / "loss.svg", lines, first_step));
  sinks_.push_back(MakeJsonLines(lines));
  if (wanted.csv) sinks_.push_back(MakeCsv(dir / "metrics.csv", first_step));
  if (wanted.tensorboard) sinks_.push_back(MakeTensorBoard(dir / "tensorboard", first_step));
  if (wanted.wandb) sinks_.push_back(MakeWandb(dir, first_step, DescribeForWandb(parts.spec)));
}

// Share of the time since the first step began that went into steps that count. Evaluations,
// checkpoints, starts, pauses and steps repeated after a restart do not count.
double RunMetrics::Goodput() const {
  const double elapsed = UnixNowExact() - started_unix_;
  return elapsed > 0 ? std::min(1.0, productive_seconds_ / elapsed) : 1;
}

std::string RunMetrics::LogLine(int64_t step, const StepResult& result,
                                const StepTimes& times) const {
  char line[256];
  std::snprintf(line, sizeof line,
                "completed step: %lld, seconds: %.3f, TFLOP/s/device: %.3f, "
                "Tokens/s/device: %.3f, total_weights: %lld, loss: %.3f",
                static_cast<long long>(step), times.seconds, tflop_per_step_ / times.seconds,
                tokens_per_step_ / times.seconds, static_cast<long long>(result.total_weights),
                result.loss);
  std::string text = line;
  if (result.preference) text += RewardsIn(*result.preference);
  if (result.distill) text += LossesIn(*result.distill);
  if (result.routers) text += RoutersIn(*result.routers);
  return text;
}

std::string RunMetrics::EvalLine(int64_t steps_done, const EvaluationResult& result,
                                 double bits_per_byte) {
  char text[240];
  if (result.preference) {
    std::snprintf(text, sizeof text, "eval after step: %lld, loss: %.4f%s",
                  static_cast<long long>(steps_done), result.loss,
                  RewardsIn(*result.preference).c_str());
    return text;
  }
  if (result.is_library_loss) {
    std::snprintf(text, sizeof text, "eval after step: %lld, loss: %.4f, accuracy: %.4f",
                  static_cast<long long>(steps_done), result.loss, result.accuracy);
    return text;
  }
  std::snprintf(text, sizeof text,
                "eval after step: %lld, loss: %.4f, perplexity: %.3f, accuracy: %.4f, "
                "bits/byte: %.4f",
                static_cast<long long>(steps_done), result.loss, std::exp(CrossEntropyOf(result)),
                result.accuracy, bits_per_byte);
  return text + (result.distill ? LossesIn(*result.distill) : std::string());
}

void RunMetrics::Step(int64_t step, const StepResult& result, const StepTimes& times) {
  productive_seconds_ += times.seconds;
  const double tflops = tflop_per_step_ / times.seconds;
  std::vector<Scalar> scalars = {
      {"learning/total_weights", result.total_weights},
      {"learning/loss", result.loss},
      {"learning/grad_norm", result.grad_norm},
      {"learning/raw_grad_norm", result.raw_grad_norm},
      {"learning/current_learning_rate", result.learning_rate},
      {"learning/updated", result.updated ? 1.0 : 0.0},
      {"perf/step_time_seconds", times.seconds},
      {"perf/data_wait_seconds", times.data_seconds},
      {"perf/per_device_tflops", tflop_per_step_},
      {"perf/per_device_tflops_per_sec", tflops},
      {"perf/hardware_tflops", tflop_per_step_ + recomputed_tflop_},
      {"perf/per_device_tokens", tokens_per_step_},
      {"perf/per_device_tokens_per_sec", tokens_per_step_ / times.seconds},
      {"perf/real_tokens_per_sec", result.total_weights / times.seconds},
      {"perf/mfu", tflops / roof_tflops_},
      {"perf/goodput", Goodput()},
      {"data/epoch", static_cast<double>(parts_.packer.epoch())}};
  if (parts_.spec.train.z_loss > 0) scalars.push_back({"learning/z_loss", result.z_loss});
  if (result.routers) {
    scalars.insert(scalars.end(), {{"learning/moe_lb_loss", result.routers->balance},
                                   {"learning/router_z_loss", result.routers->z},
                                   {"learning/most_loaded_expert", result.routers->most_loaded}});
  }
  if (result.preference) {
    const PreferenceFigures& figures = *result.preference;
    scalars.insert(scalars.end(), {{"rewards/chosen", figures.chosen_reward},
                                   {"rewards/rejected", figures.rejected_reward},
                                   {"rewards/accuracies", figures.accuracy},
                                   {"rewards/margins", figures.margin},
                                   {"logps/chosen", figures.chosen_logprob},
                                   {"logps/rejected", figures.rejected_logprob}});
  } else {
    if (result.distill) {
      scalars.insert(scalars.end(), {{"distill/soft_loss", result.distill->soft},
                                     {"distill/hard_loss", result.distill->hard}});
    }
    if (!result.is_library_loss) {
      scalars.push_back({"learning/perplexity", std::exp(CrossEntropyOf(result))});
    }
    scalars.push_back({"learning/accuracy", result.accuracy});
  }
  Write(MetricsRow::Kind::kStep, step, std::move(scalars));
}

void RunMetrics::LeftOut(int64_t step, const StepResult& result, const StepTimes& times) {
  Write(MetricsRow::Kind::kStep, step,
        {{"learning/total_weights", result.total_weights},
         {"learning/loss", result.loss},
         {"learning/raw_grad_norm", result.raw_grad_norm},
         {"learning/current_learning_rate", result.learning_rate},
         {"learning/updated", 0},
         {"learning/finite", 0},
         {"learning/skipped", 1},
         {"perf/step_time_seconds", times.seconds},
         {"perf/data_wait_seconds", times.data_seconds},
         {"data/epoch", static_cast<double>(parts_.packer.epoch())}});
}

void RunMetrics::Evaluation(int64_t steps_done, const EvaluationResult& result,
                            double bits_per_byte, double seconds) {
  std::vector<Scalar> scalars = {{"eval/avg_loss", result.loss},
                                 {"eval/total_weights", result.total_weights},
                                 {"eval/seconds", seconds}};
  if (result.preference) {
    const PreferenceFigures& figures = *result.preference;
    scalars.insert(scalars.end(), {{"eval/rewards/chosen", figures.chosen_reward},
                                   {"eval/rewards/rejected", figures.rejected_reward},
                                   {"eval/rewards/accuracies", figures.accuracy},
                                   {"eval/rewards/margins", figures.margin},
                                   {"eval/logps/chosen", figures.chosen_logprob},
                                   {"eval/logps/rejected", figures.rejected_logprob}});
  } else {
    scalars.push_back({"eval/accuracy", result.accuracy});
    if (result.distill) {
      scalars.insert(scalars.end(), {{"eval/distill/soft_loss", result.distill->soft},
                                     {"eval/distill/hard_loss", result.distill->hard}});
    }
    if (!result.is_library_loss) {
      scalars.insert(scalars.end(), {{"eval/avg_perplexity", std::exp(CrossEntropyOf(result))},
                                     {"eval/bits_per_byte", bits_per_byte}});
    }
  }
  Write(MetricsRow::Kind::kBetweenSteps, steps_done, std::move(scalars));
}

void RunMetrics::Checkpoint(int64_t steps_done, double seconds) {
  Write(MetricsRow::Kind::kBetweenSteps, steps_done, {{"checkpoint/seconds", seconds}});
}

void RunMetrics::Write(MetricsRow::Kind kind, int64_t step, std::vector<Scalar> scalars) {
  const MetricsRow row{kind, step, UnixNowExact(), std::move(scalars)};
  for (const auto& sink : sinks_) sink->Write(row);
}

void RunMetrics::Flush() {
  for (const auto& sink : sinks_) sink->Flush();
}

void RunMetrics::Sync() const {
  for (const char* name : {"metrics.jsonl", "metrics.csv"}) {
    if (std::filesystem::exists(dir_ / name)) engine::SyncPath(dir_ / name);
  }
  std::error_code absent;
  for (const auto& events : std::filesystem::directory_iterator(dir_ / "tensorboard", absent)) {
    engine::SyncPath(events.path());
  }
  for (const auto& run : std::filesystem::directory_iterator(dir_ / "wandb", absent)) {
    for (const auto& file : std::filesystem::directory_iterator(run.path(), absent)) {
      engine::SyncPath(file.path());
    }
  }
  SyncDirectory(dir_);
}

}  // namespace tandem::training
