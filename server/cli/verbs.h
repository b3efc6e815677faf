#pragma once

#include <span>
#include <string>

namespace CLI {
class App;
}

namespace tandem::server {

// A verb of the program: one file in this room, one line in verbs.cc. `add` declares the verb's
// options on its own subcommand and keeps what they fill; the function it returns runs the verb and
// gives the exit code. Errors are thrown.
struct Verb {
  const char* name;
  const char* description;
  void (*add)(CLI::App& command, int& exit_code);
};

std::span<const Verb> Verbs();

// Each declares its options and, through CLI11's callback, runs when its verb was given.
void AddServe(CLI::App& command, int& exit_code);
void AddGenerate(CLI::App& command, int& exit_code);
void AddPull(CLI::App& command, int& exit_code);
void AddTrain(CLI::App& command, int& exit_code);
void AddEval(CLI::App& command, int& exit_code);
void AddProfile(CLI::App& command, int& exit_code);
void AddCheckpoint(CLI::App& command, int& exit_code);
void AddConfig(CLI::App& command, int& exit_code);
void AddData(CLI::App& command, int& exit_code);
void AddPlan(CLI::App& command, int& exit_code);
void AddConvert(CLI::App& command, int& exit_code);
void AddPipeline(CLI::App& command, int& exit_code);
void AddQuantize(CLI::App& command, int& exit_code);
void AddTokenizer(CLI::App& command, int& exit_code);
void AddDoctor(CLI::App& command, int& exit_code);
void AddBench(CLI::App& command, int& exit_code);
void AddVersion(CLI::App& command, int& exit_code);
void AddHelp(CLI::App& command, int& exit_code);

// Version, commit and build in one line: what `tandem version` and `tandem --version` print.
std::string VersionLine();

}  // namespace tandem::server
