#include "server/cli/cli.h"

int main(int argc, char** argv) { return tandem::server::RunCli(argc, argv); }
