#pragma once

#include <memory>

namespace CLI {
class App;
class FormatterBase;
}  // namespace CLI

namespace tandem::server {

// Prints help as HelpText, as wide as the terminal. Give it to the program before its verbs exist.
std::shared_ptr<CLI::FormatterBase> MakeHelpFormatter();

// The verbs that explain the program itself, declared like those of verbs.h.
void AddHelp(CLI::App& command, int& exit_code);
void AddMan(CLI::App& command, int& exit_code);
void AddCompletion(CLI::App& command, int& exit_code);

}  // namespace tandem::server
