// Worlds that tests and mutants share; those of fault plans are in fault_plans.h.
#pragma once

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

// Three ranks that reset their group, which may be in the middle of the first two launches.
Scenario ResetBetweenLaunches();

}  // namespace stoker::testing::simt
