// The worlds that are explored, the faults that are tried, and what mutants run in.
#pragma once

#include <vector>

#include "testing/simt/world.h"

namespace stoker::testing::simt {

// Two ranks, one CTA with one row warp, one packet a row, four launches over the wrap of the epoch.
Scenario Smallest();
// Launches without tokens between such with one, triggered early.
Scenario NoTokensBetween();
// Two ranks with two CTAs of a token each.
Scenario TwoClusters();
// Two CTAs a cluster and three tokens in turn.
Scenario TwoCtasACluster();
// Three ranks that exchange in two shots.
Scenario ThreeRanksInTwoShots();

// One rank does something else than the others; each says what may be reported.
std::vector<Scenario> Faults();
Scenario FaultNamed(const char* name);

}  // namespace stoker::testing::simt
