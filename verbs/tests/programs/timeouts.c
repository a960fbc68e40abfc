/* How long a QP waits for a peer that says nothing. */

#include "laws.h"
#include <time.h>

/* What a QP is given, and its time: 4.096 us times 2^timeout for each of its tries. */
struct terms {
	uint8_t timeout, retry_cnt;
	/* The least that it may last, with what other connections get of it; 0: it lasts for ever. */
	int least_ms;
};

enum {
	/* `failover_grace`, which a shorter time of the QP's own is made as long as. */
	GRACE_MS = 3000,
	/* A request begins at the time of its node's last round. */
	EARLIER_MS = 10,
	/* A busy machine comes to look at a clock later than it is due, and does not do so each time. */
	LATER_MS = 1200,
	TRIES = 5,
	COUNT = 3,
};

static const struct terms terms[COUNT] = {
	{ 14, 1, GRACE_MS },
	/* 8 tries of 537 ms. */
	{ 17, 7, 4295 },
	{ 0, 1, 0 },
};

static int now_ms(void)
{
	struct timespec now;
	LAW(clock_gettime(CLOCK_MONOTONIC, &now) == 0);
	return (int)(now.tv_sec * 1000 + now.tv_nsec / 1000000);
}

/* Connects a QP to one of this device that need not know of it. */
static void connect_on(struct ibv_qp *qp, uint32_t peer, const struct terms *of)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1 };
	LAW(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
					     IBV_QP_ACCESS_FLAGS) == 0);
	attr = (struct ibv_qp_attr){
		.qp_state = IBV_QPS_RTR,
		.path_mtu = IBV_MTU_1024,
		.dest_qp_num = peer,
		.ah_attr = { .is_global = 1, .port_num = 1, .grh = { .dgid = gid } },
	};
	LAW(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
					     IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
					     IBV_QP_MIN_RNR_TIMER) == 0);
	attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS, .timeout = of->timeout,
				     .retry_cnt = of->retry_cnt };
	LAW(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
					     IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
					     IBV_QP_MAX_QP_RD_ATOMIC) == 0);
	struct ibv_qp_init_attr init;
	LAW(ibv_query_qp(qp, &attr, IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT, &init) == 0);
	LAW(attr.timeout == of->timeout && attr.retry_cnt == of->retry_cnt);
}

static void send_from(struct ibv_qp *qp, uint64_t wr_id)
{
	struct ibv_send_wr *bad, wr = { .wr_id = wr_id, .opcode = IBV_WR_SEND,
					.send_flags = IBV_SEND_INLINE | IBV_SEND_SIGNALED };
	LAW(ibv_post_send(qp, &wr, &bad) == 0);
}

/* Peers that stay in RESET say nothing: each QP ends after its own time, which is at least that of a
   failover, and one without a time does not. Gives whether none was late. */
static int silent_peers(void)
{
	int in_time = 1;
	struct ibv_qp *qps[COUNT], *silent[COUNT];
	struct ibv_wc wc;
	for (int n = 0; n < COUNT; n++) {
		qps[n] = make_qp(cq);
		silent[n] = make_qp(cq);
		connect_on(qps[n], silent[n]->qp_num, &terms[n]);
	}
	int began = now_ms();
	for (int n = 0; n < COUNT; n++)
		send_from(qps[n], n);
	for (int n = 0; n < COUNT && terms[n].least_ms > 0; n++) {
		wc = completion();
		int lasted = now_ms() - began, least = terms[n].least_ms;
		LAW(wc.wr_id == (uint64_t)n && wc.qp_num == qps[n]->qp_num);
		LAW(wc.status == IBV_WC_RETRY_EXC_ERR && wc.vendor_err == SILENT);
		LAW(lasted >= least - EARLIER_MS);
		in_time &= lasted < least + LATER_MS;
	}
	LAW(ibv_poll_cq(cq, 1, &wc) == 0);
	for (int n = 0; n < COUNT; n++)
		LAW(ibv_destroy_qp(qps[n]) == 0 && ibv_destroy_qp(silent[n]) == 0);
	return in_time;
}

/* That a peer's QP is not there is said by its node, and nobody waits. */
static void absent_peers(void)
{
	struct ibv_qp *qp = make_qp(cq), *absent = make_qp(cq);
	connect_on(qp, absent->qp_num, &terms[0]);
	LAW(ibv_destroy_qp(absent) == 0);
	int began = now_ms();
	send_from(qp, 5);
	struct ibv_wc wc = completion();
	LAW(wc.wr_id == 5 && wc.status == IBV_WC_RETRY_EXC_ERR && wc.vendor_err == NO_QP);
	LAW(now_ms() - began < GRACE_MS);
	LAW(ibv_destroy_qp(qp) == 0);
}

void timeouts(void)
{
	int tries = 0;
	while (!silent_peers())
		LAW(++tries < TRIES);
	absent_peers();
}
