#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "engine/io/atomic_write.h"
#include "engine/kernels/kernels.h"
#include "engine/model/model.h"
#include "tests/seams/packed_segments.h"
#include "tests/support/adapters.h"
#include "tests/support/model_harness.h"
#include "tests/support/temporary_dir.h"
#include "training/lora/lora.h"
#include "training/setup/model_files.h"
#include "training/step/trainer.h"

namespace tandem::tests {

// Trains an adapter of these options for two steps on a base loaded with these options. Then
// exports it, serves it beside rows of the base alone, and expects the logits of training, bit for
// bit, on every table of kernels.
inline void ExpectTrainedAdapterIsServed(const std::filesystem::path& model,
                                         const engine::LoadOptions& load,
                                         training::LoraOptions lora) {
  const TemporaryDir directory;
  lora.rank = 5;
  WriteRandomAdapter(model, std::move(lora), 3, directory.path() / "before");
  const auto before = engine::LoraAdapter::Open(directory.path() / "before");

  for (const engine::KernelTable* table : engine::RunnableKernelTables()) {
    SCOPED_TRACE(table->isa);
    ThreadPool pool(2);
    engine::OpsContext ops(*table, pool);
    const auto base = engine::Model::Load(engine::ModelDir::Open(model), load, ops);
    const auto segments = Segments(base->config().vocab_size);
    training::MicroBatch batch = Pack(segments);
    training::TrainerOptions options;
    options.row_length = static_cast<int64_t>(batch.tokens.size());
    options.max_segments = 3;
    options.schedule = {
        .learning_rate = 1e-2, .kind = training::ScheduleKind::kConstant, .schedule_steps = 2};
    training::Trainer trainer(base, training::LoraTargetsOf(before, base->family(), base->config()),
                              options, ops);
    const std::string source = (directory.path() / "before/adapter_model.safetensors").string();
    trainer.parameters().LoadFrom(engine::SafetensorsFile::Open(source), source);
    trainer.MastersChanged();
    batch.targets.assign(batch.targets.size(), 1);
    batch.weights.assign(batch.weights.size(), 1);
    for (int step = 0; step < 2; ++step) ASSERT_TRUE(trainer.Step({&batch, 1}).updated);
    std::vector<float> trained(batch.tokens.size() *
                               static_cast<size_t>(base->config().vocab_size));
    trainer.executor().ForwardLogits(batch.View(0), trained.data());

    const std::string config =
        engine::ReadWholeFile(directory.path() / "before/adapter_config.json", 1 << 20);
    const auto exported =
        training::ExportAdapter(config, {}, trainer.parameters(), directory.path() / "after");
    ModelHarness harness(model, {.dtype = load.dtype, .block = load.block, .kernels = table});
    const auto adapter = harness.LoadAdapter(exported);
    std::vector<float> served;
    for (const auto& tokens : segments) {
      harness.UseAdapter(adapter);
      const std::vector<float> logits = harness.Prefill(tokens, 7);
      served.insert(served.end(), logits.begin(), logits.end());
      harness.UseAdapter(nullptr);
      EXPECT_NE(harness.Prefill(tokens, 7), logits);
    }

    ASSERT_EQ(trained.size(), served.size());
    size_t differing = 0;
    for (size_t i = 0; i < trained.size(); ++i) {
      differing += std::memcmp(&trained[i], &served[i], sizeof(float)) != 0 ? 1 : 0;
    }
    EXPECT_EQ(differing, 0u) << "of " << trained.size() << " logits";
  }
}

// Likewise of the linear layers that `module_path` names (empty: all but routers).
inline void ExpectTrainedAdapterIsServed(const std::filesystem::path& model,
                                         const engine::LoadOptions& load,
                                         const std::string& module_path = {}) {
  training::LoraOptions lora;
  lora.module_path = module_path;
  ExpectTrainedAdapterIsServed(model, load, std::move(lora));
}

}  // namespace tandem::tests
