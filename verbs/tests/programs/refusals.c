/* What is refused or given up, and that nothing of it is left. */

#include "laws.h"

/* Begins a WRITE to a place of the memory. */
static void begin_write(struct ibv_qp_ex *qp, uint64_t wr_id, int to)
{
	qp->wr_id = wr_id;
	qp->wr_flags = IBV_SEND_SIGNALED;
	ibv_wr_rdma_write(qp, mr->rkey, (uintptr_t)memory + to);
}

static void completes(uint64_t wr_id)
{
	struct ibv_wc wc = completion();
	LAW(wc.wr_id == wr_id && wc.status == IBV_WC_SUCCESS);
}

/* Each request of a group has its own inline data, and a group has nothing of the one before. */
void groups_of_requests(void)
{
	struct ibv_qp_ex *qp = ibv_qp_to_qp_ex(left);
	struct ibv_data_buf parts[2] = { { "th", 2 }, { "ree", 4 } };
	struct ibv_wc wc;
	memset(memory, 0, 1024);
	ibv_wr_start(qp);
	ibv_wr_send(qp);
	ibv_wr_set_ud_addr(qp, NULL, 1, 1);
	LAW(ibv_wr_complete(qp) == EINVAL);
	ibv_wr_start(qp);
	begin_write(qp, 40, 100);
	ibv_wr_set_inline_data(qp, "aborted", 8);
	ibv_wr_abort(qp);
	ibv_wr_start(qp);
	begin_write(qp, 41, 200);
	ibv_wr_set_inline_data(qp, "one", 4);
	begin_write(qp, 42, 300);
	ibv_wr_set_inline_data(qp, "two", 4);
	begin_write(qp, 43, 400);
	ibv_wr_set_inline_data_list(qp, 2, parts);
	LAW(ibv_wr_complete(qp) == 0);
	completes(41);
	completes(42);
	completes(43);
	LAW(ibv_poll_cq(cq, 1, &wc) == 0 && memory[100] == 0);
	LAW(strcmp(memory + 200, "one") == 0 && strcmp(memory + 300, "two") == 0);
	LAW(strcmp(memory + 400, "three") == 0);
}

/* CQs, and how they are polled, with what is not offered. */
static void refused_cqs(void)
{
	struct ibv_cq_init_attr_ex init = { .cqe = 4, .flags = IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN };
	struct ibv_poll_cq_attr attr = { .comp_mask = 1 };
	LAW(ibv_start_poll(cq_ex, &attr) == EINVAL);
	/* Without its bit in the mask the field says nothing. */
	struct ibv_cq_ex *made = ibv_create_cq_ex(context, &init);
	LAW(made && ibv_destroy_cq(ibv_cq_ex_to_cq(made)) == 0);
	init.comp_mask = IBV_CQ_INIT_ATTR_MASK_FLAGS;
	LAW(!ibv_create_cq_ex(context, &init) && errno == EOPNOTSUPP);
}

/* An SRQ that a QP has stays; once it has gone its events have, too. */
static void refused_srqs(void)
{
	struct ibv_srq_init_attr init = { .attr = { .max_wr = 8, .max_sge = 1 } };
	struct ibv_srq *srq = ibv_create_srq(pd, &init);
	struct ibv_qp_init_attr of = {
		.send_cq = cq,
		.recv_cq = cq,
		.srq = srq,
		.cap = { .max_send_wr = 4, .max_send_sge = 1 },
		.qp_type = IBV_QPT_RC,
	};
	struct ibv_srq_attr attr = { .srq_limit = 2 };
	struct ibv_qp *qp = ibv_create_qp(pd, &of);
	LAW(srq && qp);
	LAW(ibv_modify_srq(srq, &attr, IBV_SRQ_LIMIT | 1 << 5) == EINVAL);
	LAW(ibv_destroy_srq(srq) == EBUSY && ibv_destroy_qp(qp) == 0);
	LAW(!is_readable(context->async_fd, 0));
	LAW(ibv_modify_srq(srq, &attr, IBV_SRQ_LIMIT) == 0);
	LAW(is_readable(context->async_fd, PATIENCE_MS));
	LAW(ibv_destroy_srq(srq) == 0 && !is_readable(context->async_fd, 0));
}

/* Flags of regions that mean nothing; a region whose addresses begin at 0. */
static void regions_by_flags(void)
{
	struct ibv_send_wr *bad, wr = { .wr_id = 44, .opcode = IBV_WR_RDMA_WRITE, .num_sge = 1,
					.send_flags = IBV_SEND_SIGNALED };
	LAW(!ibv_reg_mr(pd, memory, SIZE, 1 << 15) && errno == EINVAL);
	struct ibv_mr *based = ibv_reg_mr(pd, memory, 64, IBV_ACCESS_ZERO_BASED);
	LAW(based);
	struct ibv_sge sge = { 8, 5, based->lkey };
	memcpy(memory + 8, "based", 5);
	wr.sg_list = &sge;
	wr.wr.rdma.remote_addr = (uintptr_t)memory + 600;
	wr.wr.rdma.rkey = mr->rkey;
	LAW(ibv_post_send(left, &wr, &bad) == 0);
	completes(44);
	LAW(memcmp(memory + 600, "based", 5) == 0 && ibv_dereg_mr(based) == 0);
}

/* What is not offered says so, by a NULL in the header's tables or by itself. */
static void not_offered(void)
{
	struct ibv_xrcd_init_attr xrcd = { .comp_mask = IBV_XRCD_INIT_ATTR_FD |
							IBV_XRCD_INIT_ATTR_OFLAGS,
					   .fd = -1, .oflags = O_CREAT };
	struct ibv_alloc_dm_attr dm = { .length = 64 };
	struct ibv_flow_attr flow = { .type = IBV_FLOW_ATTR_NORMAL, .size = sizeof(flow) };
	struct ibv_wq_init_attr wq = { .wq_type = IBV_WQT_RQ, .max_wr = 1, .max_sge = 1,
				       .pd = pd, .cq = cq };
	struct ibv_counters_init_attr counters = { 0 };
	struct ibv_td_init_attr td = { 0 };
	struct ibv_parent_domain_init_attr parent = { .pd = pd };
	struct ibv_modify_cq_attr moderation = { .attr_mask = IBV_CQ_ATTR_MODERATE,
						 .moderate = { 1, 1 } };
	struct ibv_srq_init_attr_ex srq = { .attr = { .max_wr = 1, .max_sge = 1 },
					    .comp_mask = IBV_SRQ_INIT_ATTR_TYPE |
							 IBV_SRQ_INIT_ATTR_PD,
					    .srq_type = IBV_SRQT_XRC, .pd = pd };
	LAW(!ibv_open_xrcd(context, &xrcd) && errno == EOPNOTSUPP);
	errno = 0;
	LAW(!ibv_create_srq_ex(context, &srq) && errno == EOPNOTSUPP);
	errno = 0;
	LAW(!ibv_alloc_dm(context, &dm) && errno == EOPNOTSUPP);
	errno = 0;
	LAW(!ibv_create_flow(left, &flow) && errno == EOPNOTSUPP);
	errno = 0;
	LAW(!ibv_create_wq(context, &wq) && errno == EOPNOTSUPP);
	errno = 0;
	LAW(!ibv_create_counters(context, &counters) && errno == EOPNOTSUPP);
	errno = 0;
	LAW(!ibv_alloc_td(context, &td) && errno == EOPNOTSUPP);
	errno = 0;
	LAW(!ibv_alloc_parent_domain(context, &parent) && errno == EOPNOTSUPP);
	errno = 0;
	LAW(!ibv_reg_dmabuf_mr(pd, 0, SIZE, 0, 0, 0) && errno == EOPNOTSUPP);
	errno = 0;
	LAW(!ibv_import_pd(context, 0) && errno == EOPNOTSUPP);
	LAW(ibv_modify_cq(cq, &moderation) == EOPNOTSUPP);
	LAW(ibv_attach_mcast(left, &gid, 0) == EOPNOTSUPP);
}

void refused_objects(void)
{
	errno = 0;
	not_offered();
	refused_cqs();
	refused_srqs();
	regions_by_flags();
}
