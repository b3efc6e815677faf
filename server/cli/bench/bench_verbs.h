#pragma once

namespace CLI {
class App;
}

namespace tandem::server {

// The subcommands of `tandem bench`. Each declares its options; CLI11's callback runs it.

// In kernel_benches.cc: kernels of serving. `roof_only`: only what the machine can do.
void AddGemmBench(CLI::App& command, int& exit_code, bool roof_only);
void AddAttentionBench(CLI::App& command, int& exit_code);
void AddSampleBench(CLI::App& command, int& exit_code);

// In engine_benches.cc: steps of the engine.
void AddStepBench(CLI::App& command, int& exit_code);
void AddCoresBench(CLI::App& command, int& exit_code);
void AddContextBench(CLI::App& command, int& exit_code);
void AddConstrainBench(CLI::App& command, int& exit_code);
void AddFairnessBench(CLI::App& command, int& exit_code);
void AddStatesBench(CLI::App& command, int& exit_code);

// In training_benches.cc: steps of training, and their parts.
void AddOptimizerBench(CLI::App& command, int& exit_code);
void AddMlpBench(CLI::App& command, int& exit_code);
void AddHeadBench(CLI::App& command, int& exit_code);
void AddTrainBench(CLI::App& command, int& exit_code);

// In text_benches.cc: tokenizers and chat templates.
void AddTokenizerBench(CLI::App& command, int& exit_code);
void AddTemplateBench(CLI::App& command, int& exit_code);

// In storage_benches.cc: checkpoints and object stores.
void AddOrbaxBench(CLI::App& command, int& exit_code);
void AddObjectsBench(CLI::App& command, int& exit_code);

// Load on a server.
void AddHttpBench(CLI::App& command, int& exit_code);

// Models with random weights, for measurements.
void AddMakeModel(CLI::App& command, int& exit_code);

}  // namespace tandem::server
