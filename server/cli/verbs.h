#pragma once

#include <span>
#include <string>

namespace CLI {
class App;
}

namespace tandem::server {

// A verb of the program: one file in this folder and one line in verbs.cc.
struct Verb {
  const char* name;
  const char* description;
  void (*add)(CLI::App& command, int& exit_code);
};

std::span<const Verb> Verbs();

// Each declares the options of its subcommand. If the verb is given, CLI11's callback runs it and
// sets exit_code; errors are thrown.
void AddServe(CLI::App& command, int& exit_code);
// The next five are in server/cli/remote.
void AddRun(CLI::App& command, int& exit_code);
void AddModels(CLI::App& command, int& exit_code);
void AddPs(CLI::App& command, int& exit_code);
void AddJobs(CLI::App& command, int& exit_code);
void AddFt(CLI::App& command, int& exit_code);
void AddGenerate(CLI::App& command, int& exit_code);
void AddPull(CLI::App& command, int& exit_code);
void AddKeys(CLI::App& command, int& exit_code);
void AddTrain(CLI::App& command, int& exit_code);
void AddEval(CLI::App& command, int& exit_code);
void AddProfile(CLI::App& command, int& exit_code);
void AddCheckpoint(CLI::App& command, int& exit_code);
void AddConfig(CLI::App& command, int& exit_code);
void AddData(CLI::App& command, int& exit_code);
void AddPlan(CLI::App& command, int& exit_code);
void AddConvert(CLI::App& command, int& exit_code);
void AddPipeline(CLI::App& command, int& exit_code);
// The next two are in server/cli/deploy.
void AddDeploy(CLI::App& command, int& exit_code);
void AddLaunch(CLI::App& command, int& exit_code);
void AddQuantize(CLI::App& command, int& exit_code);
void AddTokenizer(CLI::App& command, int& exit_code);
void AddDoctor(CLI::App& command, int& exit_code);
void AddBench(CLI::App& command, int& exit_code);  // in server/cli/bench
void AddVersion(CLI::App& command, int& exit_code);
// AddHelp, AddMan and AddCompletion are in manual/help.h.

// One line with version, commit and build, for `tandem version` and `tandem --version`.
std::string VersionLine();

}  // namespace tandem::server
