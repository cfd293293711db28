// Kernels that are wrong on purpose, each in one way. Every one says where it runs, what must
// happen there (written before it was run), and which step of the safety argument
// (docs/decisions/protocol_safety.md) it takes away. None is in a shipped kernel: they are
// environments, or an exchange of their own, around the shipped bodies.
#pragma once

#include <string>
#include <vector>

#include "testing/simt/world.h"

namespace stoker::testing::simt {

struct Mutant {
  std::string name;
  std::string what;                // is wrong with it
  std::string step;                // of the argument that is missing
  std::vector<Verdict> predicted;  // any of these kills it, no other does
  Scenario scenario;
  Body body;
  // The same world with the unchanged kernel, or, where the world itself is at fault, its control.
  Body control;
};

std::vector<Mutant> MailboxMutants();  // mailbox, sentinel, re-arming, addresses
std::vector<Mutant> EpochMutants();    // epoch, grid dependency, tickets, headers
std::vector<Mutant> FailureMutants();  // deadline, abort, NaN fill, reset
std::vector<Mutant> ClusterMutants();  // barriers and shared memory within a cluster

}  // namespace stoker::testing::simt
